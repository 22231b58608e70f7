// Connects the parts of the page with the server.

import { eventsOf, request, useKey, whenKeyNeeded } from "./api.js";
import { ChatView } from "./chat.js";
import { FiguresView } from "./figures.js";
import { PoolView } from "./pool.js";
import { RequestsView } from "./requests.js";
import { EngineState } from "./state.js";
import { StepsView } from "./steps.js";
import { addShows } from "./shows.js";

const connection = document.getElementById("connection");
const keyForm = document.getElementById("key-form");
const state = new EngineState();
const pool = new PoolView(state);
const steps = new StepsView(state);
const requests = new RequestsView(state, pool);
const chat = new ChatView((name) => requests.own.add(name));
let wake = () => {};

// For tests and for the curious, in the browser's console.
window.jaxserve = { state };

function say(text) {
  if (connection.textContent !== text) connection.textContent = text;
}

async function readEvents(signal) {
  const response = await request("v1/engine/events", { signal });
  for await (const event of eventsOf(response)) {
    state.take(event);
    if (event.first) pool.redraw();
    say("Connected");
    pool.draw();
    steps.draw();
    requests.draw();
  }
}

// Reads while the page can be seen; comes again when the connection was cut.
async function watch() {
  let pause = 500;
  while (true) {
    if (document.hidden) await new Promise((resolve) => (wake = resolve));
    const stop = new AbortController();
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    const began = Date.now();
    try {
      await readEvents(stop.signal);
      say("The server has ended the stream. Connecting again…");
    } catch (error) {
      if (!stop.signal.aborted) say(error.status === 401 ? "The server needs an API key." : "No connection to the server. Trying again…");
    }
    document.removeEventListener("visibilitychange", hide);
    pause = Date.now() - began > 5000 ? 500 : Math.min(10_000, pause * 1.6);
    await Promise.race([new Promise((resolve) => (wake = resolve)), new Promise((resolve) => setTimeout(resolve, pause))]);
  }
}

document.addEventListener("visibilitychange", () => document.hidden || wake());
whenKeyNeeded(() => {
  keyForm.hidden = false;
});
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("key");
  useKey(field.value.trim());
  field.value = "";
  keyForm.hidden = true;
  chat.start();
  wake();
});

chat.start();
addShows(chat, (name) => requests.own.add(name));
new FiguresView(state);
watch();
