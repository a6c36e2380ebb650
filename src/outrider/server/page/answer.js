// One answer: what the stream brings, as Markdown, as tokens by step, and as what went over the wire.

import { Acceptance } from "./acceptance.js";
import { apiKey } from "./api.js";
import { button, el, rarely, shortNumber } from "./dom.js";
import { MarkdownView } from "./markdown_view.js";
import { TokenView } from "./token_view.js";

const VIEWS = { text: "Text", tokens: "Tokens", raw: "Raw" };
const VIEW_NAME = "outrider.view"; // the view that was chosen last
const MOST_RAW_EVENTS = 400;

/** Puts `text` into the clipboard and says so on the button that asked for it. */
async function copy(asked, text) {
  const name = asked.textContent;
  try {
    await navigator.clipboard.writeText(text);
    asked.textContent = "Copied";
  } catch {
    asked.textContent = "The browser refused";
  }
  setTimeout(() => (asked.textContent = name), 1500);
}

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
    const hidden = { hidden: true };
    this.parts = {
      reasoningText: el("div", { class: "reasoning-text" }),
      text: el("div", { class: "text" }),
      raw: el("div", { class: "raw" }),
      note: el("p", { class: "note", hidden: true }),
      figures: el("p", { class: "answer-figures" }),
      copy: button("Copy text", "quiet", (event) => copy(event.target, this.text), hidden),
      retry: button("Try again", "quiet retry", (event) => this.retry(event), hidden),
    };
    this.markdown = new MarkdownView(this.parts.text);
    this.parts.reasoning = el(
      "details",
      { class: "reasoning", hidden: true, open: true },
      el("summary", {}, "Reasoning"),
      this.parts.reasoningText,
    );
    this.switches = Object.entries(VIEWS).map(([view, name]) =>
      button(name, "", () => this.showView(view, true), { "data-view": view }),
    );
    const group = { class: "switch", role: "group", "aria-label": "View of this answer" };
    this.element = el(
      "article",
      { class: "answer", "aria-label": this.title, onclick: () => actions.onSelect(this) },
      el("header", {}, el("h3", {}, this.title), el("div", group, ...this.switches)),
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
    for (const choice of this.switches) {
      choice.setAttribute("aria-pressed", String(choice.dataset.view === view));
    }
    if (chosen) localStorage.setItem(VIEW_NAME, view);
    this.drawView();
  }

  /** What is not drawn while another view is chosen. */
  drawView() {
    if (this.view === "text") this.markdown.draw();
    if (this.view === "raw") this.drawRaw();
  }

  /** Shows what a step drafted, beside the element `at`; null: no more. */
  look(step, at) {
    this.tokenView.look(step, at);
  }

  /** Shows where a step's tokens are. */
  goTo(step) {
    if (this.view !== "tokens") this.showView("tokens");
    this.tokenView.goTo(step);
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
    this.drawSoon();
  }

  drawSoon = rarely(80, () => {
    this.drawFigures();
    this.drawView();
    this.actions.onChange(this);
  });

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
      this.markdown.append(content);
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
    this.drawSoon();
  }

  /** "40 tokens, 11 steps, 310 tokens/s", with what is known so far. */
  figures() {
    const tokens = this.sums.numTokens;
    if (tokens === 0) return this.state === "waiting" ? "Waiting for the first token" : "No tokens";
    const parts = [`${shortNumber(tokens)} tokens`, `${shortNumber(this.steps.length)} steps`];
    // From the request to now or the end: there is no other time when all comes at once.
    const rate = (1000 * tokens) / ((this.ended ?? performance.now()) - this.started);
    parts.push(`${shortNumber(rate < 10 ? rate : Math.round(rate))} tokens/s`);
    parts.push(`first after ${Math.round(this.firstToken - this.started)} ms`);
    const cached = this.usage?.prompt_tokens_details.cached_tokens;
    if (cached) parts.push(`${shortNumber(cached)} prompt tokens cached`);
    if (this.finishReason === "length") parts.push("ended by max tokens");
    return parts.join(" · ");
  }

  drawFigures() {
    this.parts.figures.textContent = this.figures();
  }

  drawRaw() {
    const block = (title, text) => [el("h4", {}, title), el("pre", { tabindex: 0 }, text)];
    const count = shortNumber(this.events.length);
    const shown = this.events.slice(-MOST_RAW_EVENTS).map((data) => `data: ${data}`);
    const cut = this.events.length > shown.length ? `, the last ${shown.length}` : "";
    this.parts.raw.replaceChildren(
      ...block("POST /v1/chat/completions", JSON.stringify(this.body, null, 2)),
      button("Copy as curl", "quiet", (event) => copy(event.target, this.curl())),
      ...block(`${count} events${cut}`, shown.join("\n\n") || "Nothing yet"),
    );
  }

  /** The request for a shell; its key, if there is one, from a variable. */
  curl() {
    const quoted = `'${JSON.stringify(this.body).replaceAll("'", "'\\''")}'`;
    const key = apiKey.get() ? ' -H "Authorization: Bearer $OUTRIDER_API_KEY"' : "";
    const url = new URL("v1/chat/completions", document.baseURI);
    return `curl -N ${url} -H 'Content-Type: application/json'${key} -d ${quoted}`;
  }

  retry(event) {
    event.stopPropagation(); // this answer goes: it must not be selected
    this.actions.onRetry();
  }
}
