// The JavaScript clients against a server: each asks once, whole and streamed, and prints what it got as one
// line of JSON. node clients.mjs URL; the packages are in the folder that NODE_PATH's loader sees.

import { createRequire } from "node:module";

const require = createRequire(process.env.CLIENTS_FOLDER + "/");
const { default: OpenAI } = require("openai");
const { default: Anthropic } = require("@anthropic-ai/sdk");
const { generateText, streamText } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");

const url = process.argv[2];
const model = "galley-echo";
const messages = [{ role: "user", content: "Hello!" }];
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const galley = createOpenAICompatible({ name: "galley", baseURL: `${url}/v1`, apiKey: "none" });

const answers = {};
const chat = await openai.chat.completions.create({ model, messages });
answers.openai_chat = chat.choices[0].message.content;
const chunks = await openai.chat.completions.create({ model, messages, stream: true });
answers.openai_chat_streamed = "";
for await (const chunk of chunks) {
  answers.openai_chat_streamed += chunk.choices[0]?.delta?.content ?? "";
}
answers.openai_responses = (await openai.responses.create({ model, input: "Hello!" })).output_text;
const stream = openai.responses.stream({ model, input: "Hello!" });
answers.openai_responses_streamed = (await stream.finalResponse()).output_text;

const text = (message) => message.content.filter((part) => part.type === "text").map((part) => part.text).join("");
answers.anthropic = text(await anthropic.messages.create({ model, max_tokens: 99, messages }));
answers.anthropic_streamed = text(await anthropic.messages.stream({ model, max_tokens: 99, messages }).finalMessage());

answers.ai = (await generateText({ model: galley(model), prompt: "Hello!" })).text;
answers.ai_streamed = "";
for await (const piece of streamText({ model: galley(model), prompt: "Hello!" }).textStream) {
  answers.ai_streamed += piece;
}
console.log(JSON.stringify(answers));
