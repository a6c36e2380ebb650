// One answer: what the stream brings, as text, as tokens by step, and as what went over the wire.

import { Acceptance } from "./acceptance.js";
import { el, shortNumber } from "./dom.js";
import { TokenView } from "./token_view.js";

const VIEWS = { text: "Text", tokens: "Tokens", raw: "Raw" };
const VIEW_NAME = "outrider.view"; // the view that was chosen last
const MOST_RAW_EVENTS = 400;

export class Answer {
  steps = [];
  sums = new Acceptance();
  text = "";
  reasoning = "";
  events = [];
  metrics = null;
  usage = null;
  finishReason = null;

  /** `actions`: {onChange, onSelect, onStep, onRetry}; `body`: the request as it is sent. */
  constructor(number, body, actions) {
    this.title = `Answer ${number}`;
    this.body = body;
    this.actions = actions;
    this.started = performance.now();
    this.tokenView = new TokenView((step) => actions.onStep(this, step));
    this.parts = {
      reasoningText: el("div", { class: "reasoning-text" }),
      text: el("div", { class: "text" }),
      raw: el("div", { class: "raw" }),
      note: el("p", { class: "note", hidden: true }),
      figures: el("p", { class: "answer-figures" }),
      retry: el("button", { type: "button", class: "quiet retry", hidden: true, onclick: (event) => this.retry(event) }, "Try again"),
      copy: el("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.copy() }, "Copy text"),
    };
    this.parts.reasoning = el(
      "details",
      { class: "reasoning", hidden: true, open: true },
      el("summary", {}, "Reasoning"),
      this.parts.reasoningText,
    );
    this.switches = Object.entries(VIEWS).map(([view, name]) =>
      el("button", { type: "button", "data-view": view, onclick: () => this.showView(view, true) }, name),
    );
    this.element = el(
      "article",
      { class: "answer", "aria-label": this.title, onclick: () => actions.onSelect(this) },
      el(
        "header",
        {},
        el("h3", {}, this.title),
        el("div", { class: "switch", role: "group", "aria-label": "View of this answer" }, ...this.switches),
      ),
      this.parts.reasoning,
      this.parts.text,
      this.tokenView.element,
      this.parts.raw,
      this.parts.note,
      el("footer", {}, this.parts.figures, this.parts.copy, this.parts.retry),
    );
    this.showView(localStorage.getItem(VIEW_NAME) ?? "tokens");
    this.setState("waiting");
  }

  /** waiting, streaming, done, stopped or failed. */
  setState(state) {
    this.state = state;
    this.element.dataset.state = state;
    this.element.setAttribute("aria-busy", String(state === "waiting" || state === "streaming"));
    const over = !["waiting", "streaming"].includes(state);
    this.parts.copy.hidden = !over || !this.text;
    this.parts.retry.hidden = !over;
    this.drawFigures();
  }

  showView(view, chosen = false) {
    this.view = view;
    this.element.dataset.view = view;
    for (const button of this.switches) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
    if (chosen) localStorage.setItem(VIEW_NAME, view);
    if (view === "raw") this.drawRaw();
  }

  look(step) {
    if (step !== null && this.view !== "tokens") this.showView("tokens");
    this.tokenView.lookAt(step);
  }

  /** Takes in one event of the stream, parsed and as it came. */
  take(chunk, data) {
    this.events.push(data);
    const choice = chunk.choices[0];
    if (choice) this.takeChoice(choice);
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.metrics) this.metrics = chunk.metrics.speculative_decoding;
    if (this.state === "waiting" && this.steps.length > 0) {
      this.firstToken = performance.now();
      this.setState("streaming");
    }
    this.drawFigures();
    if (this.view === "raw") this.drawRaw();
    this.actions.onChange(this);
  }

  takeChoice(choice) {
    const { content, reasoning } = choice.delta;
    if (reasoning) {
      this.reasoning += reasoning;
      this.parts.reasoning.hidden = false;
      this.parts.reasoningText.append(reasoning);
    }
    if (content) {
      if (!this.text) this.parts.reasoning.open = false;
      this.text += content;
      this.parts.text.append(content);
    }
    for (const step of choice.speculative_steps ?? []) {
      this.steps.push(step);
      this.sums.add(step);
      this.tokenView.add(step);
    }
    if (choice.finish_reason) this.finishReason = choice.finish_reason;
  }

  end(state, note = "") {
    this.ended = performance.now();
    this.parts.note.textContent = note;
    this.parts.note.hidden = !note;
    this.setState(state);
    if (this.view === "raw") this.drawRaw();
    this.actions.onChange(this);
  }

  /** "40 tokens, 11 steps, 310 tokens/s", with what is known so far. */
  figures() {
    const tokens = this.sums.numTokens;
    if (tokens === 0) return this.state === "waiting" ? "Waiting for the first token" : "No tokens";
    const parts = [`${shortNumber(tokens)} tokens`, `${shortNumber(this.steps.length)} steps`];
    const seconds = ((this.ended ?? performance.now()) - this.firstToken) / 1000;
    if (tokens > 1 && seconds > 0.02) parts.push(`${shortNumber(Math.round(tokens / seconds))} tokens/s`);
    if (this.firstToken) parts.push(`first after ${Math.round(this.firstToken - this.started)} ms`);
    if (this.usage?.prompt_tokens_details?.cached_tokens) {
      parts.push(`${shortNumber(this.usage.prompt_tokens_details.cached_tokens)} prompt tokens cached`);
    }
    if (this.finishReason === "length") parts.push("ended by max tokens");
    return parts.join(" · ");
  }

  drawFigures() {
    this.parts.figures.textContent = this.figures();
  }

  drawRaw() {
    const block = (title, text) => [el("h4", {}, title), el("pre", { tabindex: 0 }, text)];
    const hidden = Math.max(0, this.events.length - MOST_RAW_EVENTS);
    const shown = this.events.slice(hidden).map((data) => `data: ${data}`).join("\n\n");
    this.parts.raw.replaceChildren(
      ...block("POST v1/chat/completions", JSON.stringify(this.body, null, 2)),
      ...block(
        `${shortNumber(this.events.length)} events${hidden ? `, the last ${MOST_RAW_EVENTS}` : ""}`,
        shown || "Nothing yet",
      ),
    );
  }

  retry(event) {
    event.stopPropagation(); // this answer goes: it must not be selected
    this.actions.onRetry();
  }

  async copy() {
    const button = this.parts.copy;
    try {
      await navigator.clipboard.writeText(this.text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refused";
    }
    setTimeout(() => (button.textContent = "Copy text"), 1500);
  }
}
