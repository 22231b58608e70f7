// Vercel's AI SDK, with each of its providers for OpenAI's API: calls whose results go back, objects,
// and objects beside tools.
//
//     node ai_sdk.mjs BASE_URL
//
// Fails with the first error; prints the names of what it has done.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.argv[2];
const openai = createOpenAI({ baseURL, apiKey: "none" });
const compatible = createOpenAICompatible({
  name: "jaxserve",
  baseURL,
  supportsStructuredOutputs: true,
});
const models = {
  chat: openai.chat("tiny"),
  responses: openai.responses("tiny"),
  compatible: compatible("tiny"),
};
const Weather = z.object({ city: z.enum(["Rome", "Paris"]), warm: z.boolean() });
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.enum(["Rome", "Paris"]) }),
  execute: async ({ city }) => `warm in ${city}`,
});
const base = {
  prompt: "hi",
  temperature: 0,
  maxRetries: 0,
  maxOutputTokens: 100,
  // Without parallel calls, so that a model of random weights ends after one.
  providerOptions: {
    openai: { store: false, parallelToolCalls: false },
    jaxserve: { parallel_tool_calls: false },
  },
};
// A call first, then an answer that has its result before it.
const twoSteps = {
  tools: { weather },
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
};

async function calls(model) {
  const { steps } = await generateText({ ...base, ...twoSteps, model });
  assert.equal(steps.length, 2);
  assert.equal(steps[0].toolCalls[0].toolName, "weather");
  assert.match(steps[0].toolResults[0].output, /^warm in (Rome|Paris)$/);
}

async function streamedCalls(model) {
  const result = streamText({ ...base, ...twoSteps, model, onError: () => {} });
  for await (const part of result.fullStream) {
    assert.notEqual(part.type, "error", JSON.stringify(part.error?.message));
  }
  assert.equal((await result.steps).length, 2);
}

async function objects(model) {
  const { output } = await generateText({
    ...base,
    model,
    output: Output.object({ schema: Weather }),
  });
  Weather.parse(output);
}

async function objectsBesideTools(model) {
  const { output, steps } = await generateText({
    ...base,
    ...twoSteps,
    model,
    output: Output.object({ schema: Weather }),
  });
  assert.equal(steps[0].toolCalls[0].toolName, "weather");
  Weather.parse(output);
}

for (const [name, model] of Object.entries(models)) {
  for (const step of [calls, streamedCalls, objects, objectsBesideTools]) {
    await step(model);
    console.log(`${name} ${step.name}`);
  }
}
