// The conversation: sends what is written, feeds the answers, stops them.

import { ApiError, events, request } from "./api.js";
import { Answer } from "./answer.js";
import { button, byId, el } from "./dom.js";

// For models that bring no questions of their own.
const GENERAL_QUESTIONS = [
  "Explain in three short steps how a bicycle stays upright.",
  "Write a Python function that tells whether a number is prime, and a table of what it says for 1 to 10.",
  "What are the advantages and drawbacks of living by the sea? Answer as a list.",
];

const NEAR_END = 40; // pixels: a reader who is this close to the end follows the answer

export class Chat {
  #turns = []; // {role, content}; an assistant's once its answer is there
  #follows = true; // the reader wants to see the end of the answer that grows
  #scrolled = { top: 0, height: 0 }; // of the page, when it was scrolled last
  #numAnswers = 0;
  #running = null; // the AbortController of the answer that is coming

  /** `settings.fields()` go into requests; `askForKey()` resolves to whether there is a new key. */
  constructor({ settings, figures, askForKey, onServer }) {
    Object.assign(this, { settings, figures, askForKey, onServer });
    const message = byId("message");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(message.value);
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.clear());
    message.addEventListener("input", () => this.#grow());
    message.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send(message.value);
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    document.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    // What is scrolled to stays clear of the composer, as tall as it is.
    const composer = byId("composer");
    new ResizeObserver(() => {
      document.documentElement.style.setProperty("--composer", `${composer.offsetHeight}px`);
    }).observe(composer);
  }

  /** Offers questions that suit the model; of none, general ones. */
  suggest(questions) {
    const shown = questions.length > 0 ? questions : GENERAL_QUESTIONS;
    byId("prompts").replaceChildren(
      ...shown.map((text) => button(text, "", () => this.send(text))),
    );
  }

  #grow() {
    const message = byId("message");
    message.style.height = "auto";
    message.style.height = `${Math.min(message.scrollHeight + 2, 220)}px`;
  }

  send(text) {
    if (this.#running || !text.trim()) return;
    byId("message").value = "";
    this.#grow();
    // A question that got no answer is no part of the conversation.
    if (this.#turns.at(-1)?.role === "user") this.#turns.pop();
    this.#turns.push({ role: "user", content: text.trim() });
    byId("empty").hidden = true;
    byId("messages").append(el("div", { class: "question" }, text.trim()));
    this.#ask();
  }

  /** The last question again, with the settings as they are now. */
  #retry() {
    if (this.#running) return;
    if (this.#turns.at(-1).role === "assistant") this.#turns.pop();
    byId("messages").lastElementChild.remove();
    this.#ask();
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#turns = [];
    this.#numAnswers = 0;
    byId("messages").replaceChildren();
    byId("empty").hidden = false;
    this.figures.show(null);
    byId("message").focus();
  }

  async #ask() {
    const body = {
      messages: this.settings.messages(this.#turns),
      ...this.settings.fields(),
      stream: true,
      stream_options: { include_usage: true },
      per_request_spec_decode_metrics: "detailed",
    };
    const turns = this.#turns;
    const answer = new Answer(++this.#numAnswers, body, {
      onChange: (changed) => {
        if (this.figures.answer === changed) this.figures.draw();
        this.#follow();
      },
      onSelect: (chosen) => this.select(chosen),
      onStep: (of, step) => {
        if (this.figures.answer === of) this.figures.mark(step);
      },
      onRetry: () => this.#retry(),
    });
    // Only the last question can be asked again.
    for (const old of document.querySelectorAll(".answer .retry")) old.remove();
    byId("messages").append(answer.element);
    this.select(answer);
    const controller = new AbortController();
    this.#setRunning(controller);
    this.#rememberScroll();
    this.#follows = true;
    this.#follow();
    try {
      await this.#stream(answer, controller.signal);
      answer.end("done");
      byId("announcer").textContent = `${answer.title} is complete: ${answer.figures()}`;
    } catch (error) {
      this.#explain(answer, error);
    }
    // What was stopped or broke off stays part of the conversation as far as it came.
    if (answer.text && turns === this.#turns) {
      turns.push({ role: "assistant", content: answer.text });
    }
    if (this.#running === controller) this.#setRunning(null);
  }

  async #stream(answer, signal) {
    const response = await this.#post(answer.body, signal);
    for await (const data of events(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(response.status, chunk.error.message, chunk.error.code);
      answer.take(chunk, data);
    }
    throw new ApiError(0, "The connection ended before the answer did.", "broken_off");
  }

  async #post(body, signal) {
    for (;;) {
      try {
        return await request("v1/chat/completions", { body, signal });
      } catch (error) {
        if (error.status !== 401 || !(await this.askForKey(true))) throw error;
      }
    }
  }

  #explain(answer, error) {
    if (error.name === "AbortError") {
      answer.end("stopped", "Stopped. The engine dropped the request.");
      byId("announcer").textContent = `${answer.title} was stopped`;
      return;
    }
    if (!(error instanceof ApiError)) {
      answer.end("failed", "The page failed on this answer; the console says where.");
      throw error;
    }
    if (error.status === 0) this.onServer("offline");
    const code = error.status > 0 ? ` (${error.code || error.status})` : "";
    answer.end("failed", error.message + code);
    byId("announcer").textContent = `${answer.title} failed: ${error.message}`;
  }

  #setRunning(controller) {
    this.#running = controller;
    byId("send").hidden = controller !== null;
    byId("stop").hidden = controller === null;
  }

  select(answer) {
    document.querySelector(".answer.selected")?.classList.remove("selected");
    answer.element.classList.add("selected");
    if (this.figures.answer !== answer) this.figures.show(answer);
  }

  // Keeps the end of a growing answer in view, unless the reader scrolled away from it: perhaps just
  // now, so that the event is still to come.
  #follow() {
    this.#noticeReader();
    if (!this.#follows) return;
    window.scrollBy(0, Math.max(0, this.#hiddenPixels()));
    this.#rememberScroll();
  }

  // How much of the conversation's end is behind the composer or below it.
  #hiddenPixels() {
    const composer = byId("composer").getBoundingClientRect();
    return byId("messages").getBoundingClientRect().bottom - composer.top;
  }

  // Scrolling up ends following, coming back to the end begins it again. What the answer does
  // itself, growing or folding its reasoning, is no sign of the reader's.
  #onScroll() {
    if (this.#hiddenPixels() < NEAR_END) this.#follows = true;
    else this.#noticeReader();
    this.#rememberScroll();
  }

  #noticeReader() {
    const { top, height } = this.#scrolled;
    const { scrollTop, scrollHeight } = document.documentElement;
    if (scrollTop < top && scrollHeight >= height) this.#follows = false;
  }

  #rememberScroll() {
    const { scrollTop, scrollHeight } = document.documentElement;
    this.#scrolled = { top: scrollTop, height: scrollHeight };
  }
}
