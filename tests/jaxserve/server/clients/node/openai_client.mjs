// OpenAI's client for Node: what it got, parsed or accumulated goes back as history.
//
//     node openai_client.mjs BASE_URL
//
// Fails with the first error; prints the names of what it has done.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const Weather = z.object({ city: z.enum(["Rome", "Paris"]), warm: z.boolean() });
const user = { role: "user", content: "hi" };
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Rome", "Paris"] } },
  required: ["city"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "weather", parameters, strict: true } };
const asked = { model: "tiny", messages: [user], temperature: 0, max_completion_tokens: 200 };
const forced = { tools: [tool], tool_choice: "required", parallel_tool_calls: false };

async function secondTurn(message) {
  const results = (message.tool_calls ?? []).map((call) => ({
    role: "tool",
    tool_call_id: call.id,
    content: "warm",
  }));
  const done = await client.chat.completions.create({
    ...asked,
    messages: [user, message, ...results, user],
    tools: [tool],
    max_completion_tokens: 1,
  });
  assert.equal(done.choices.length, 1);
}

async function calls() {
  const done = await client.chat.completions.create({ ...asked, ...forced });
  const [call] = done.choices[0].message.tool_calls;
  assert.ok(["Rome", "Paris"].includes(JSON.parse(call.function.arguments).city));
  await secondTurn(done.choices[0].message);
}

async function parsed() {
  const done = await client.chat.completions.parse({
    ...asked,
    response_format: zodResponseFormat(Weather, "weather"),
  });
  Weather.parse(done.choices[0].message.parsed);
  await secondTurn(done.choices[0].message);
}

async function streamed() {
  const stream = client.chat.completions.stream({ ...asked, ...forced });
  let names = "";
  for await (const chunk of stream) {
    names += chunk.choices[0]?.delta?.tool_calls?.[0]?.function?.name ?? "";
  }
  assert.equal(names, "weather");
  await secondTurn(await stream.finalMessage());
}

async function ranTools() {
  const seen = [];
  const runner = client.chat.completions.runTools({
    ...asked,
    tool_choice: { type: "function", function: { name: "weather" } },
    tools: [
      {
        type: "function",
        function: {
          name: "weather",
          description: "The weather in a city.",
          parameters,
          parse: JSON.parse,
          function: ({ city }) => {
            seen.push(city);
            return `warm in ${city}`;
          },
        },
      },
    ],
  });
  await runner.done();
  assert.equal(seen.length, 1);
  await client.chat.completions.create({
    ...asked,
    messages: [...runner.messages, user],
    max_completion_tokens: 1,
  });
}

async function responses() {
  const own = { model: "tiny", temperature: 0, max_output_tokens: 200, store: false };
  const flat = { type: "function", ...tool.function };
  const first = await client.responses.create({
    ...own,
    input: [user],
    tools: [flat],
    tool_choice: "required",
    parallel_tool_calls: false,
    include: ["reasoning.encrypted_content"],
  });
  const [call] = first.output.filter((item) => item.type === "function_call");
  const result = { type: "function_call_output", call_id: call.call_id, output: "warm" };
  const stream = client.responses.stream({
    ...own,
    input: [user, ...first.output, result],
    text: { format: zodTextFormat(Weather, "weather") },
  });
  const second = await stream.finalResponse();
  Weather.parse(second.output_parsed);
  const third = await client.responses.create({
    ...own,
    input: [user, ...first.output, result, ...second.output, user],
    max_output_tokens: 1,
  });
  assert.equal(third.object, "response");
}

for (const step of [calls, parsed, streamed, ranTools, responses]) {
  await step();
  console.log(step.name);
}
