// The conversation: state, and how it looks. What goes over the wire is in api.js.

import * as api from "./api.js";
import * as monitor from "./monitor.js";

const by = (id) => document.getElementById(id);
const PLACEHOLDER = by("input").placeholder;

// ---- state

/** Messages as they are sent; an assistant's also has `figures`, `problem`: what the page shows of it. */
let messages = [];
let running = null; // the AbortController of the answer under way

const lastOf = (role) => messages.findLast((message) => message.role === role);
const isAnswered = (call) => messages.some((message) => message.tool_call_id === call.id);
/** Calls that wait for what their tool says: nothing else may be said before. */
const openCalls = () => (lastOf("assistant")?.tool_calls ?? []).filter((call) => !isAnswered(call));

// ---- pieces of the page

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Text with ``` fences: what is between two of them is code. */
function showText(into, text) {
  into.replaceChildren(
    ...text.split("```").map((part, i) => {
      if (i % 2 === 0) {
        return document.createTextNode(part);
      }
      const pre = element("pre");
      pre.append(element("code", "", part.replace(/^[\w+-]*\n/, "")));
      return pre;
    }),
  );
}

const SPEAKERS = { user: "You", assistant: "Galley", tool: "Result of a tool" };

/** The element of a message; update(item, message) fills it. */
function makeTurn(message) {
  const item = element("li", `turn ${message.role}`);
  item.append(element("span", "hidden", `${SPEAKERS[message.role]}: `));
  if (message.role === "assistant") {
    const thoughts = element("details", "thoughts");
    thoughts.append(element("summary", "", "Thinking"), element("div", "thought text"));
    item.append(thoughts);
  }
  item.append(element("div", "text"), element("div", "calls"), element("p", "problem"));
  return item;
}

function updateTurn(item, message) {
  const text = item.querySelector(":scope > .text");
  if (text.textContent !== message.content) {
    showText(text, message.content);
  }
  item.querySelector(".problem").textContent = message.problem ?? "";
  const thoughts = item.querySelector(".thoughts");
  if (thoughts) {
    thoughts.hidden = !message.reasoning_content;
    if (!message.content && !message.tool_calls?.length) {
      thoughts.open = true;
    } else if (item.classList.contains("busy") && !thoughts.dataset.closed) {
      thoughts.open = false; // once: its reader may open it again
      thoughts.dataset.closed = "yes";
    }
    thoughts.querySelector(".thought").textContent = message.reasoning_content ?? "";
  }
  item.querySelector(".calls").replaceChildren(...(message.tool_calls ?? []).map(makeCall));
}

/** A call and, until it was answered, a field for what the tool says. */
function makeCall(call) {
  const card = element("div", "call");
  card.append(element("strong", "", call.function.name), element("pre", "", call.function.arguments));
  if (!running && !isAnswered(call)) {
    const label = element("label", "", "What the tool answers");
    const field = element("textarea");
    const send = element("button", "", "Send result");
    field.rows = 2;
    send.type = "button";
    send.addEventListener("click", () => {
      label.remove();
      send.remove();
      answerCall(call, field.value);
    });
    label.append(field);
    card.append(label, send);
  }
  return card;
}

function redraw() {
  by("start").hidden = messages.length > 0;
  by("turns").replaceChildren(
    ...messages.map((message) => {
      const item = makeTurn(message);
      updateTurn(item, message);
      return item;
    }),
  );
  scrollDown();
  updateButtons();
  showFigures(lastOf("assistant")?.figures);
}

function scrollDown() {
  by("scroll").scrollTop = by("scroll").scrollHeight;
}

/** Follows what is said, unless its reader has scrolled up. */
function follow(update) {
  const { scrollTop, scrollHeight, clientHeight } = by("scroll");
  const below = scrollHeight - clientHeight - scrollTop < 40;
  update();
  if (below) {
    scrollDown();
  }
}

function updateButtons() {
  const open = openCalls().length > 0;
  by("send").disabled = running !== null || open;
  by("input").placeholder = open ? "A tool's answer is wanted above." : PLACEHOLDER;
  by("stop").disabled = running === null;
  by("retry").disabled = running !== null || lastOf("user") === undefined;
}

// ---- what the engine did

const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);
const FINISHES = {
  stop: "said all",
  length: "longest answer reached",
  tool_calls: "calls a tool",
  content_filter: "stopped by a filter",
};

function showFigures(figures) {
  by("figures-none").hidden = figures !== undefined;
  by("figures").hidden = figures === undefined;
  by("prompt-parts").hidden = !figures?.usage;
  by("tokens-panel").hidden = messages.length === 0;
  by("tokens").replaceChildren();
  by("tokens-count").textContent = "";
  if (!figures) {
    return;
  }
  const { usage, firstMs, totalMs } = figures;
  const rows = [["First token after", firstMs === undefined ? "–" : seconds(firstMs)]];
  if (usage) {
    const after = (totalMs - firstMs) / 1000;
    const thought = usage.completion_tokens_details?.reasoning_tokens;
    const speed = usage.completion_tokens > 1 && after > 0 ? (usage.completion_tokens - 1) / after : NaN;
    rows.push(
      ["Speed", Number.isNaN(speed) ? "–" : `${speed.toFixed(1)} tokens/s`],
      ["Answer", `${usage.completion_tokens} tokens`],
      ...(thought ? [["Of it thinking", `${thought} tokens`]] : []),
      ["Prompt", `${usage.prompt_tokens} tokens`],
      ["From the cache", `${usage.prompt_cache_hit_tokens} tokens`],
    );
    showPromptBar(usage);
  }
  rows.push(["Ended", FINISHES[figures.finish] ?? figures.finish ?? "–"]);
  if (figures.note) {
    rows.push(["Note", figures.note]);
  }
  rows.push(["Request", figures.request ?? "–"]);
  by("figures").replaceChildren(
    ...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]),
  );
}

function showPromptBar(usage) {
  const parts = [
    ["cached", usage.prompt_cache_hit_tokens],
    ["computed", usage.prompt_cache_miss_tokens],
  ];
  by("prompt-bar").replaceChildren(
    ...parts.map(([kind, tokens]) => {
      const part = element("div", kind);
      part.style.flexGrow = tokens;
      return part;
    }),
  );
  by("prompt-bar").setAttribute(
    "aria-label",
    `${usage.prompt_cache_hit_tokens} tokens from the cache, ${usage.prompt_cache_miss_tokens} computed`,
  );
}

async function showTokens() {
  try {
    const found = await api.tokens(requestBody());
    const control = new Set(found.control);
    by("tokens").replaceChildren(
      ...found.token_strs.map((text, i) => {
        const chip = element("span", control.has(i) ? "token control" : "token", text.replace(/\n/g, "⏎\n"));
        chip.title = `token ${found.tokens[i]}`;
        return chip;
      }),
    );
    by("tokens-count").textContent = `${found.count} tokens`;
  } catch (error) {
    by("tokens-count").textContent = error.message;
  }
}

// ---- asking

/** The tools of the settings, as the API wants them. Throws when they are no list of functions. */
function toolsOfSettings() {
  const text = by("tools").value.trim();
  if (!text) {
    return undefined;
  }
  const list = JSON.parse(text);
  if (!Array.isArray(list) || !list.every((tool) => tool && typeof tool === "object")) {
    throw new Error("they must be a list of functions");
  }
  return list.map((tool) => (tool.type === "function" ? tool : { type: "function", function: tool }));
}

/** Of a field; undefined, which is not sent, where it is empty. */
const numberOf = (id) => (by(id).value === "" ? undefined : Number(by(id).value));

function requestBody() {
  const system = by("system").value.trim();
  const body = {
    model: by("model").value,
    messages: messages
      .filter((message) => message.role !== "assistant" || message.content || message.tool_calls)
      .map(({ figures, problem, ...message }) => message),
    temperature: numberOf("temperature"),
    max_tokens: numberOf("max-tokens"),
    thinking: { type: by("thinking").checked ? "enabled" : "disabled" },
    tools: toolsOfSettings(),
  };
  if (system) {
    body.messages.unshift({ role: "system", content: system });
  }
  return body;
}

function addDelta(message, delta) {
  if (delta.content) {
    message.content = (message.content ?? "") + delta.content;
  }
  if (delta.reasoning_content) {
    message.reasoning_content = (message.reasoning_content ?? "") + delta.reasoning_content;
  }
  for (const piece of delta.tool_calls ?? []) {
    message.tool_calls ??= [];
    const call = (message.tool_calls[piece.index] ??= {
      id: piece.id,
      type: "function",
      function: { name: piece.function.name, arguments: "" },
    });
    call.function.arguments += piece.function.arguments ?? "";
  }
}

/** A call that the longest answer cut off has no use, and no server would take it back. */
function dropHalfCalls(answer) {
  const whole = (answer.tool_calls ?? []).filter((call) => {
    try {
      JSON.parse(call.function.arguments);
      return true;
    } catch {
      return false;
    }
  });
  if (answer.tool_calls && whole.length < answer.tool_calls.length) {
    answer.problem = "A call of a tool was cut off and is left out.";
    answer.tool_calls = whole.length ? whole : undefined;
  }
}

/** Asks for the answer to what was said so far. */
async function ask() {
  let body;
  try {
    body = requestBody();
  } catch (error) {
    redraw();
    by("status").textContent = `The tools are not understood: ${error.message}`;
    return;
  }
  const answer = { role: "assistant", content: "" };
  messages.push(answer);
  const mine = new AbortController();
  running = mine;
  redraw();
  const item = by("turns").lastElementChild;
  item.classList.add("busy");
  by("status").textContent = "Galley is answering.";
  let waiting = null; // the frame that will show what came
  try {
    answer.figures = await api.chat(body, mine.signal, (delta) => {
      addDelta(answer, delta);
      waiting ??= requestAnimationFrame(() => {
        waiting = null;
        follow(() => updateTurn(item, answer));
      });
    });
    by("status").textContent = "Answered.";
    dropHalfCalls(answer);
  } catch (error) {
    answer.problem = error.name === "AbortError" ? "You stopped this answer." : error.message;
    delete answer.tool_calls; // half a call is none
    by("status").textContent = running === mine ? answer.problem : "";
  }
  if (running === mine) {
    running = null;
    redraw();
  }
}

function say(text) {
  messages.push({ role: "user", content: text });
  ask();
}

function answerCall(call, text) {
  messages.push({ role: "tool", tool_call_id: call.id, content: text });
  if (openCalls().length === 0) {
    ask();
    return;
  }
  // The other calls keep what was typed for them.
  const item = makeTurn(messages.at(-1));
  updateTurn(item, messages.at(-1));
  by("turns").append(item);
  updateButtons();
}

/** Forgets the last answer and what came of it, and asks again. */
function retry() {
  while (messages.length && messages.at(-1).role !== "user") {
    messages.pop();
  }
  ask();
}

// ---- themes and views

const THEMES = [undefined, "light", "dark"];

function setTheme(theme) {
  if (theme) {
    document.documentElement.dataset.theme = theme;
  } else {
    delete document.documentElement.dataset.theme;
  }
  by("theme").setAttribute("aria-label", `Theme: ${theme ?? "as the system says"}`);
}

function show(view) {
  for (const name of ["chat", "monitor"]) {
    by(name).hidden = name !== view;
    by(`show-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  if (view === "monitor") {
    monitor.start();
  } else {
    monitor.stop();
  }
}

// ---- start

function listen() {
  by("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = by("input").value.trim();
    if (text && !by("send").disabled) {
      by("input").value = "";
      say(text);
    }
  });
  by("form").addEventListener(
    "invalid",
    () => {
      by("form").querySelector("details").open = true; // what is wrong is in there
    },
    true,
  );
  by("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      by("form").requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      running?.abort();
    }
  });
  by("stop").addEventListener("click", () => running?.abort());
  by("retry").addEventListener("click", retry);
  by("show-tokens").addEventListener("click", showTokens);
  by("new").addEventListener("click", () => {
    running?.abort();
    running = null;
    messages = [];
    by("status").textContent = "";
    redraw();
    by("input").focus();
  });
  by("show-chat").addEventListener("click", () => show("chat"));
  by("show-monitor").addEventListener("click", () => show("monitor"));
  by("theme").addEventListener("click", () => {
    setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  });
}

async function loadModels(wanted) {
  try {
    const names = await api.models();
    by("model").replaceChildren(...names.map((name) => new Option(name, name, false, name === wanted)));
    by("status").textContent = "";
  } catch (error) {
    const hint = error.status === 401 ? " Put it into the settings below." : "";
    by("status").textContent = error.message + hint;
  }
}

async function begin() {
  listen();
  try {
    const intro = await api.introduction();
    await loadModels(intro.model);
    by("key").addEventListener("change", () => {
      if (/^[!-~]*$/.test(by("key").value)) {
        api.setKey(by("key").value);
        loadModels(intro.model);
      } else {
        by("status").textContent = "No API key has such characters.";
      }
    });
    by("about").textContent = intro.about || "Say something to begin.";
    by("questions").replaceChildren(
      ...intro.questions.map((question) => {
        const item = element("li");
        const button = element("button", "", question);
        button.addEventListener("click", () => running || say(question));
        item.append(button);
        return item;
      }),
    );
    document.querySelector("h1").title = `Galley ${intro.version}`;
  } catch (error) {
    by("status").textContent = `The server does not answer: ${error.message}`;
  }
  by("input").focus();
}

begin();
