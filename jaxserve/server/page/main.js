// Connects the parts of the page with the server.

import { eventsOf, request, useKey, whenKeyNeeded } from "./api.js";
import { HappenedView } from "./see/happened.js";
import { PoolView } from "./see/pool.js";
import { addShows } from "./see/shows.js";
import { EngineState } from "./see/state.js";
import { StepsView } from "./see/steps.js";
import { TablesView } from "./see/tables.js";
import { ChatView } from "./try/chat.js";
import { FiguresView } from "./watch/figures.js";

const connection = document.getElementById("connection");
const keyForm = document.getElementById("key-form");
const state = new EngineState();
const pool = new PoolView(state);
const steps = new StepsView(state);
const tables = new TablesView(state, pool);
const happened = new HappenedView(state);
const chat = new ChatView((name) => tables.own.add(name));
let wake = () => {};

// For tests and for the curious, in the browser's console.
window.jaxserve = { state, pool };

function say(text, state = "off") {
  if (connection.textContent !== text) connection.textContent = text;
  connection.className = state;
}

function begin() {
  pool.redraw();
  for (const element of document.querySelectorAll(".block-size")) element.textContent = state.about.block_size;
  document.getElementById("window-legend").hidden = !state.about.windows?.some((window) => window !== null);
}

async function readEvents(signal) {
  const response = await request("v1/engine/events", { signal });
  for await (const event of eventsOf(response)) {
    state.take(event);
    if (event.first) begin();
    say("Connected", "on");
    pool.draw();
    steps.draw();
    tables.draw();
    happened.draw();
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
addShows(chat, (name) => tables.own.add(name));
new FiguresView(state);
watch();
