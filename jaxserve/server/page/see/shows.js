// Buttons that send requests to look at, whose answers are left unread. Each is one HTTP request:
// a browser has few connections to a server at once.

import { eventsOf, request } from "../api.js";

const ADVICE = "You are a careful writer. You answer at length, in plain words, and never leave a thought half said. ".repeat(3);
const THINGS = ["a lighthouse", "a railway", "a garden", "a mountain", "a river", "an old clock", "a letter", "a storm"];

const SHOWS = [
  [
    "four-answers",
    "Four answers to one question",
    "All four tables begin with the question's blocks. Each answer copies the last, partly filled one before it writes to it.",
    { prompt: `${ADVICE}This is a story about a lighthouse. `, n: 4 },
  ],
  [
    "same-beginning",
    "Six texts with the same beginning",
    "The first computes the beginning; the others find its blocks in the prefix cache and share them.",
    { prompt: THINGS.slice(0, 6).map((thing) => `${ADVICE}This is a story about ${thing}. `) },
  ],
  [
    "crowd",
    "A crowd of 48",
    "They run as far as there is room; the others wait. Where the pool is small, some are preempted.",
    { prompt: Array.from({ length: 48 }, (_, i) => `${i + 1} facts about ${THINGS[i % 8]}: `) },
  ],
];

// Args: chat: knows the model; onName: gets the id of each request.
export function addShows(chat, onName) {
  const box = document.getElementById("shows");
  let number = 0;
  for (const [name, title, about, body] of SHOWS) {
    const button = document.createElement("button");
    button.type = "button";
    const [heading, text] = [document.createElement("strong"), document.createElement("span")];
    heading.textContent = title;
    text.textContent = about;
    button.append(heading, " ", text);
    let stop = null;
    button.addEventListener("click", async () => {
      if (stop) return stop.abort();
      stop = new AbortController();
      const id = `${name}-${++number}`;
      onName(id);
      heading.textContent = `Stop: ${title}`;
      try {
        await run(id, { model: chat.model, max_tokens: 300, ignore_eos: true, stream: true, ...body }, stop.signal);
        text.textContent = about;
      } catch (error) {
        text.textContent = stop.signal.aborted ? about : `The request failed: ${error.message}`;
      }
      heading.textContent = title;
      stop = null;
    });
    box.append(button);
  }
}

async function run(id, body, signal) {
  const headers = { "Content-Type": "application/json", "X-Request-Id": id };
  const response = await request("v1/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  for await (const event of eventsOf(response)) if (event.error) throw new Error(event.error.message);
}
