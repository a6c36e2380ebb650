// The strip on top: what each of the last steps ran, and how long it took, as /debug/steps tells.

import { ApiError, events, request } from "./api.js";
import { byId, el, rarely, shortNumber } from "./dom.js";

const KEPT_STEPS = 600;
const RECENT_STEPS = 40; // that the readings are means of
const BAR = 5; // pixels from one step to the next
const RETRY_SECONDS = [1, 2, 5, 10];

export class Live {
  #steps = [];
  #now = { running: 0, waiting: 0, kv_cache_usage: 0 };
  #looked = null;

  /** `onFacts` gets the first event, what the server says of itself; `onServer` a state. */
  constructor({ onFacts, onServer, askForKey }) {
    Object.assign(this, { onFacts, onServer, askForKey });
    this.canvas = byId("live-canvas");
    this.readings = {};
    const reading = (name, label) => {
      const value = el("span", {}, "–");
      this.readings[name] = value;
      const description = el("dd", {}, value);
      byId("readouts").append(
        el("div", { class: `readout ${name}` }, el("dt", {}, label), description),
      );
      return description;
    };
    reading("rate", "Tokens/s");
    reading("time", "Step");
    reading("drafts", "k");
    reading("requests", "Running");
    reading("waiting", "Queue");
    this.meter = el("meter", { min: 0, max: 1, value: 0, "aria-label": "KV cache in use" });
    reading("cache", "KV cache").append(this.meter);
    this.#look(null);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.#look(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.#look(null));
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#connection?.abort(); // nobody looks: the engine keeps no records
    });
  }

  #connection = null;

  draw = rarely(16, () => this.#draw());

  /** Listens for as long as the page lives. */
  async run() {
    for (let failures = 0; ; ) {
      if (document.hidden) {
        await new Promise((shown) =>
          document.addEventListener("visibilitychange", shown, { once: true }),
        );
        continue;
      }
      try {
        this.#connection = new AbortController();
        const response = await request("debug/steps", { signal: this.#connection.signal });
        this.onServer("online");
        failures = 0;
        await this.#listen(response);
      } catch (error) {
        if (error.name === "AbortError") continue;
        if (!(error instanceof ApiError)) throw error;
        if (error.status === 401 && (await this.askForKey(false))) continue;
        this.onServer(error.status === 401 ? "locked" : "offline");
      }
      this.#idle();
      const pause = RETRY_SECONDS[Math.min(failures++, RETRY_SECONDS.length - 1)];
      await new Promise((resume) => setTimeout(resume, 1000 * pause));
    }
  }

  async #listen(response) {
    for await (const data of events(response)) {
      const event = JSON.parse(data);
      if (event.num_speculative_tokens !== undefined) this.onFacts(event);
      if (event.steps) this.#take(event);
    }
  }

  #take(event) {
    this.#now = event;
    this.#steps.push(...event.steps);
    this.#steps.splice(0, this.#steps.length - KEPT_STEPS);
    this.#read();
    this.#look(this.#looked);
  }

  #idle() {
    this.#now = { running: 0, waiting: 0, kv_cache_usage: 0 };
    this.#read();
  }

  #read() {
    const { rate, time, drafts, requests, waiting, cache } = this.readings;
    const recent = this.#steps.slice(-RECENT_STEPS);
    if (recent.length > 0) {
      const seconds = recent.reduce((sum, step) => sum + step.seconds, 0);
      const emitted = recent.reduce((sum, step) => sum + step.emitted_tokens, 0);
      rate.textContent = shortNumber(Math.round(emitted / seconds));
      time.textContent = `${shortNumber((1000 * seconds) / recent.length)} ms`;
      drafts.textContent = `${recent.at(-1).num_speculative_tokens}`;
    }
    requests.textContent = shortNumber(this.#now.running);
    waiting.textContent = shortNumber(this.#now.waiting);
    cache.textContent = `${(100 * this.#now.kv_cache_usage).toFixed(1)} %`;
    this.meter.value = this.#now.kv_cache_usage;
    byId("live").dataset.active = String(this.#now.running > 0);
  }

  // Which step of those drawn is under the pointer.
  #look(x) {
    this.#looked = x;
    const step = x === null ? null : this.#stepAt(x);
    byId("live-reading").textContent = step
      ? `step ${shortNumber(step.step)}: ${step.decode_rows} decode, ${step.draft_rows} verify, ` +
        `${step.prompt_rows} prompt rows in ${shortNumber(1000 * step.seconds)} ms, ` +
        `${step.emitted_tokens} tokens`
      : this.#steps.length === 0
        ? "no step has run since this page opened"
        : "";
    this.draw();
  }

  #stepAt(x) {
    const back = Math.floor((this.canvas.clientWidth - x) / BAR);
    return this.#steps.at(-1 - back) ?? null;
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const scale = devicePixelRatio;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const paint = this.canvas.getContext("2d");
    paint.scale(scale, scale);
    const colour = (name) =>
      getComputedStyle(document.querySelector(`.swatch.${name}`)).backgroundColor;
    const parts = [
      ["rows-decode", (step) => step.decode_rows],
      ["rows-accepted", (step) => step.accepted_drafts],
      ["rows-rejected", (step) => step.draft_rows - step.accepted_drafts],
      ["rows-prompt", (step) => step.prompt_rows],
    ].map(([name, rowsOf]) => ({ fill: colour(name), rowsOf }));
    const timeFill = colour("rows-time");
    const timeHeight = Math.round(height * 0.28);
    const rowsHeight = height - timeHeight - 6;
    const shown = this.#steps.slice(-Math.floor(width / BAR));
    const total = (step) => step.decode_rows + step.draft_rows + step.prompt_rows;
    const mostRows = Math.max(8, ...shown.map(total));
    const longest = Math.max(0.001, ...shown.map((step) => step.seconds));
    // A prompt's rows and time would flatten everything else: square roots keep both visible.
    const heightOf = (count) => rowsHeight * Math.sqrt(count / mostRows);
    shown.forEach((step, index) => {
      const x = width - (shown.length - index) * BAR;
      let below = 0;
      for (const { fill, rowsOf } of parts) {
        const rows = rowsOf(step);
        const [bottom, top] = [heightOf(below), heightOf(below + rows)];
        paint.fillStyle = fill;
        paint.fillRect(x, rowsHeight - top, BAR - 1, top - bottom);
        below += rows;
      }
      paint.fillStyle = timeFill;
      const tall = Math.max(1, timeHeight * Math.sqrt(step.seconds / longest));
      paint.fillRect(x, height - tall, BAR - 1, tall);
    });
    paint.fillStyle = getComputedStyle(this.canvas).borderBottomColor;
    paint.fillRect(0, rowsHeight, width, 1);
    if (this.#looked !== null && this.#stepAt(this.#looked)) {
      const column = Math.floor((width - this.#looked) / BAR);
      paint.strokeStyle = getComputedStyle(this.canvas).color;
      paint.strokeRect(width - (column + 1) * BAR - 0.5, 0.5, BAR, height - 1);
    }
    this.canvas.setAttribute("aria-label", `Rows and time of the last ${shown.length} steps`);
  }
}
