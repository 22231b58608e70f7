// Buttons that send requests to look at, whose answers are left unread. Each is one HTTP request:
// a browser has few connections to a server at once.

import { eventsOf, request } from "./api.js";

const ADVICE = "You are a careful writer. You answer at length, in plain words, and never leave a thought half said. ".repeat(3);
const THINGS = ["a lighthouse", "a railway", "a garden", "a mountain", "a river", "an old clock", "a letter", "a storm"];

const SHOWS = [
  [
    "four-answers",
    "Four answers to one question",
    "They share the question's blocks, and copy the partly filled one before they write to it.",
    { prompt: `${ADVICE}This is a story about a lighthouse. `, n: 4 },
  ],
  [
    "same-beginning",
    "Six texts with the same beginning",
    "All but the first find the blocks of their beginning in the prefix cache.",
    { prompt: THINGS.slice(0, 6).map((thing) => `${ADVICE}This is a story about ${thing}. `) },
  ],
  [
    "crowd",
    "A crowd of 48",
    "Those that find no place wait, and start as others end.",
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
    button.textContent = title;
    button.title = about;
    button.addEventListener("click", async () => {
      button.disabled = true;
      const id = `${name}-${++number}`;
      onName(id);
      try {
        await run(id, { model: chat.model, max_tokens: 300, ignore_eos: true, stream: true, ...body });
      } catch {
        // What the server says of it is in "What happened" and in its log.
      }
      button.disabled = false;
    });
    box.append(button);
  }
}

async function run(id, body) {
  const headers = { "Content-Type": "application/json", "X-Request-Id": id };
  const response = await request("v1/completions", { method: "POST", headers, body: JSON.stringify(body) });
  for await (const _ of eventsOf(response));
}
