// What the page asks the server, and nothing of how it looks.

/** An answer of the server that is an error; `message` is what it said. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let key = "";

/** The API key to send from now on; "" for none. */
export function setKey(value) {
  key = value;
}

function ask(path, options = {}) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  return fetch(path, { ...options, headers: { ...headers, ...options.headers } });
}

function post(path, body, signal) {
  return ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

async function failure(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return new ServerError(response.status, body.error?.message ?? text);
  } catch {
    return new ServerError(response.status, text || response.statusText);
  }
}

async function getJson(path) {
  const response = await ask(path);
  if (!response.ok) {
    throw await failure(response);
  }
  return response.json();
}

/** {model, about, questions, version} */
export const introduction = () => getJson("/introduction.json");

/** Names that may be asked for. */
export const models = async () => (await getJson("/v1/models")).data.map((model) => model.id);

/** Tokens of a conversation as the model gets it: {count, tokens, token_strs, control}. */
export async function tokens(body) {
  const response = await post("/tokenize", { ...body, return_token_strs: true });
  if (!response.ok) {
    throw await failure(response);
  }
  return response.json();
}

/** Data of server-sent events, as they come. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      if (frame.startsWith("data: ")) {
        yield frame.slice("data: ".length);
      }
    }
  }
}

/**
 * One answer, streamed. `onDelta` gets each piece: {content, reasoning_content, tool_calls}.
 * Returns {usage, finish, note, request, firstMs, totalMs}. Throws ServerError, also where a stream
 * breaks off, and AbortError when `signal` stops it.
 */
export async function chat(body, signal, onDelta) {
  const begin = performance.now();
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await post("/v1/chat/completions", streamed, signal);
  if (!response.ok) {
    throw await failure(response);
  }
  const done = {
    note: response.headers.get("x-galley-note"),
    request: response.headers.get("x-request-id"),
  };
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      done.totalMs = performance.now() - begin;
      return done;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) {
      throw new ServerError(response.status, chunk.error.message);
    }
    done.usage = chunk.usage ?? done.usage;
    for (const choice of chunk.choices) {
      const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
      if (content || reasoning || calls) {
        done.firstMs ??= performance.now() - begin;
        onDelta(choice.delta);
      }
      done.finish = choice.finish_reason ?? done.finish;
    }
  }
  throw new ServerError(response.status, "The answer broke off.");
}

/** Samples of /metrics: [{name, labels, value}]. */
export async function metrics() {
  const response = await ask("/metrics");
  if (!response.ok) {
    throw await failure(response);
  }
  const samples = [];
  for (const line of (await response.text()).split("\n")) {
    const match = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (match) {
      const labels = Object.fromEntries(
        [...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, key, value]) => [key, value]),
      );
      samples.push({ name: match[1], labels, value: Number(match[3]) });
    }
  }
  return samples;
}
