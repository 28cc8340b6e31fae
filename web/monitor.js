// The live view: what the server counts, asked for once a second while it is shown.

import { metrics } from "./api.js";

const PERIOD_MS = 1000;
const SAMPLES_MAX = 120; // two minutes

const whole = (value) => Math.round(value).toLocaleString("en");
const rate = (value) => `${value < 10 ? value.toFixed(1) : whole(value)} /s`;
const share = (value) => (Number.isNaN(value) ? "–" : `${(100 * value).toFixed(1)} %`);

/** Requests that shared a forward pass, on average since the sample before. */
function perStep(now, old) {
  if (now.galley_engine_steps_total === undefined) {
    return undefined;
  }
  const steps = now.galley_engine_steps_total - old.galley_engine_steps_total;
  return steps > 0 ? (now.galley_engine_rows_total - old.galley_engine_rows_total) / steps : 0;
}

// name, text of a value, value of now (and of the sample before, `seconds` earlier)
const TILES = [
  ["Answers under way", whole, (now) => now.galley_active_generations],
  ["Waiting for a place", whole, (now) => now.galley_engine_waiting_requests],
  ["Requests in a step", (value) => value.toFixed(1), (now, old) => perStep(now, old)],
  ["Cache held by requests", share, (now) => now.galley_engine_blocks && now.galley_engine_held_blocks / now.galley_engine_blocks],
  ["Cache kept for later", share, (now) => now.galley_engine_blocks && now.galley_engine_cached_blocks / now.galley_engine_blocks],
  ["Output", rate, (now, old, seconds) => (now.galley_output_tokens_total - old.galley_output_tokens_total) / seconds],
  ["Prompts", rate, (now, old, seconds) => (now.galley_prompt_tokens_total - old.galley_prompt_tokens_total) / seconds],
  ["Prompt tokens from the cache", share, (now) => now.galley_cached_tokens_total / now.galley_prompt_tokens_total],
  ["Drafts accepted", share, (now) => now.galley_engine_verified_drafts_total && now.galley_engine_accepted_drafts_total / now.galley_engine_verified_drafts_total],
  ["Open connections", whole, (now) => now.galley_open_connections],
];

const tiles = document.getElementById("tiles");
const problem = document.getElementById("monitor-error");
const rows = document.querySelector("#requests tbody");
const history = TILES.map(() => []);
let last = null;
let shown = 0; // counts the times it was shown; the newest one polls
let timer;

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function makeTile(name) {
  const tile = element("div", "tile");
  tile.append(element("div", "name", name), element("div", "value", "–"));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${SAMPLES_MAX - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
  tile.append(svg);
  return tile;
}

function drawTile(tile, text, values) {
  tile.querySelector(".value").textContent = text;
  const most = Math.max(...values, 1e-9);
  const begin = SAMPLES_MAX - values.length;
  const points = values.map((value, i) => `${begin + i},${(95 - (90 * value) / most).toFixed(1)}`);
  tile.querySelector("polyline").setAttribute("points", points.join(" "));
}

function drawRequests(samples) {
  const counted = samples.filter((sample) => sample.name === "galley_http_requests_total");
  rows.replaceChildren(
    ...counted.map(({ labels, value }) => {
      const row = document.createElement("tr");
      row.append(
        element("td", "", labels.route),
        element("td", "", labels.status === "0" ? "client left" : labels.status),
        element("td", "number", whole(value)),
      );
      return row;
    }),
  );
}

async function refresh() {
  const samples = await metrics();
  const now = Object.fromEntries(samples.map(({ name, value }) => [name, value]));
  now.time = performance.now();
  const seconds = last ? (now.time - last.time) / 1000 : 1;
  TILES.forEach(([, text, value], i) => {
    const current = value(now, last ?? now, seconds);
    // Without a model there is no engine, and nothing of it to show.
    tiles.children[i].hidden = current === undefined;
    if (current !== undefined) {
      history[i] = [...history[i], Number.isNaN(current) ? 0 : current].slice(-SAMPLES_MAX);
      drawTile(tiles.children[i], text(current), history[i]);
    }
  });
  drawRequests(samples);
  last = now;
}

async function tick(mine) {
  try {
    await refresh();
    problem.textContent = "";
  } catch (error) {
    problem.textContent = `The server does not answer: ${error.message}`;
  }
  if (mine === shown) {
    timer = setTimeout(tick, PERIOD_MS, mine);
  }
}

export function start() {
  if (tiles.children.length === 0) {
    tiles.append(...TILES.map(([name]) => makeTile(name)));
  }
  stop();
  tick(shown);
}

export function stop() {
  clearTimeout(timer);
  ++shown;
}
