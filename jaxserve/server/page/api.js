// Requests to the server that this page came from. The API key is kept here, in memory, only.

let key = "";
let onKeyNeeded = () => {};

export function useKey(value) {
  key = value;
}

export function whenKeyNeeded(handler) {
  onKeyNeeded = handler;
}

export function hasKey() {
  return key !== "";
}

// As fetch(), with the key; an answer that isn't a success becomes an Error with its message.
export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store", referrerPolicy: "no-referrer" });
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = String((await response.json()).error.message);
  } catch {
    // no JSON
  }
  const error = new Error(message);
  error.status = response.status;
  if (response.status === 401) onKeyNeeded();
  throw error;
}

// The data of each server-sent event of a response, parsed; ends at [DONE] or at its end.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [];
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      // Pieces are joined once an event is whole, so that one very long line costs its length once.
      pieces.push(value);
      if (!value.includes("\n")) continue;
      const text = pieces.join("");
      const parts = text.split("\n\n");
      pieces = [parts.pop()];
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (data === "[DONE]") return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
