// An answer as the engine made it: each step a bracket, each token coloured by what became of its
// draft. A step under the pointer or the keyboard's focus shows its drafts, rejected ones too.

import { TokenText, draftFate, tokenKind } from "./acceptance.js";
import { byId, el } from "./dom.js";

/** "end of sentence" for tokens that are spelled like <｜end▁of▁sentence｜>; else null. */
function specialName(text) {
  return text.match(/^<[|｜](.+)[|｜]>$/u)?.[1].replaceAll(/[▁_]/gu, " ") ?? null;
}

/** A token's text with its white space visible. */
function visible({ id, text }) {
  const shown = text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  return specialName(text) ?? (shown || `#${id}`);
}

/** A token in the running text; its characters may have begun in the token before. */
function tokenElement(token, kind, text) {
  const special = specialName(token.text);
  const parts = text
    .split(/(\n)/)
    .map((part) => (part === "\n" ? el("span", { class: "line-end" }, part) : part));
  const content = special ? [el("span", { class: "special", title: token.text }, special)] : parts;
  return el("span", { class: `token ${kind}`, "data-id": token.id }, ...content);
}

/** Drafts above what the model drew, position by position. */
function stepTable(step) {
  const columns = Math.max(step.drafts.length, step.tokens.length);
  const cells = (make) => Array.from({ length: columns }, (_, index) => make(index));
  const chip = (token, kind) =>
    el("td", {}, el("span", { class: `chip ${kind}`, title: `token ${token.id}` }, visible(token)));
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, el("th"), ...cells((i) => el("th", { scope: "col" }, i + 1)))),
    el(
      "tbody",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "row" }, "drafted"),
        ...cells((i) =>
          i < step.drafts.length ? chip(step.drafts[i], draftFate(step, i)) : el("td"),
        ),
      ),
      el(
        "tr",
        {},
        el("th", { scope: "row" }, "model"),
        ...cells((i) =>
          i < step.tokens.length ? chip(step.tokens[i], tokenKind(step, i)) : el("td"),
        ),
      ),
    ),
  );
}

function stepSentence(step) {
  const drafts = step.drafts.length;
  if (drafts === 0) return "nothing drafted";
  if (step.num_accepted === drafts && drafts > 1) return `all ${drafts} drafts accepted`;
  return `${step.num_accepted} of ${drafts} drafts accepted`;
}

let anchor = null; // what the popover stands by; null: it is hidden

/** Above its anchor or below it: where it covers less of the answer, as far as there is room. */
function placePopover() {
  const popover = byId("step-popover");
  const place = anchor?.getClientRects()[0];
  popover.hidden = !place;
  if (!place) return;
  const { offsetWidth: width, offsetHeight: height } = popover;
  const { clientWidth, clientHeight } = document.documentElement;
  popover.style.left = `${Math.max(8, Math.min(place.left - 8, clientWidth - width - 8))}px`;
  const above = place.top - height - 8;
  const below = place.bottom + 10;
  const lines = anchor.closest(".tokens")?.getBoundingClientRect() ?? place;
  const atTheEnd = lines.bottom - place.bottom < place.top - lines.top;
  const fitsBelow = below + height < clientHeight - 8;
  popover.style.top = `${(atTheEnd && fitsBelow) || above <= 8 ? below : above}px`;
}

export class TokenView {
  /** `onStep(number or null)` is told which step is looked at. */
  constructor(onStep) {
    this.steps = [];
    this.elements = [];
    this.text = new TokenText();
    this.onStep = onStep;
    this.shown = null;
    this.element = el("div", {
      class: "tokens",
      role: "group",
      "aria-label": "Tokens by step; arrow keys go from step to step",
      onpointerover: (event) => this.#lookAt(event.target.closest?.(".step")),
      onpointerleave: (event) => event.pointerType === "mouse" && this.look(null),
      onfocusin: (event) => this.#lookAt(event.target.closest(".step")),
      onfocusout: () => this.look(null),
      onkeydown: (event) => this.onKey(event),
    });
  }

  add(step) {
    this.steps.push(step);
    const tokens = step.tokens.map((token, index) =>
      tokenElement(token, tokenKind(step, index), this.text.next(token)),
    );
    const number = this.steps.length;
    const element = el(
      "span",
      { class: "step", tabindex: number === 1 ? 0 : -1, "data-step": number },
      ...tokens,
    );
    if (step.num_accepted < step.drafts.length) element.classList.add("has-rejected");
    this.elements.push(element);
    this.element.append(element);
  }

  #lookAt(element) {
    this.look(element ? Number(element.dataset.step) : null, element);
  }

  /** Shows what step `number` drafted, beside the element `at`; null: no more. */
  look(number, at) {
    if (number === this.shown && (number === null || at === anchor)) return;
    const before = this.elements[this.shown - 1];
    before?.classList.remove("looked-at");
    before?.removeAttribute("aria-describedby");
    this.shown = number;
    anchor = at ?? null;
    if (number !== null) {
      const popover = byId("step-popover");
      const step = this.steps[number - 1];
      const element = this.elements[number - 1];
      element.classList.add("looked-at");
      element.setAttribute("aria-describedby", popover.id);
      popover.replaceChildren(
        el("p", {}, el("strong", {}, `Step ${number}`), ` ${stepSentence(step)}`),
        stepTable(step),
      );
    }
    placePopover();
    this.onStep(number);
  }

  /** Brings a step into view and to the keyboard. */
  goTo(number) {
    const next = this.elements[number - 1];
    const old = this.element.querySelector('.step[tabindex="0"]');
    old.tabIndex = -1;
    next.tabIndex = 0;
    next.scrollIntoView({ block: "center" });
    next.focus({ preventScroll: true });
  }

  onKey(event) {
    if (event.key === "Escape") {
      this.look(null);
      return;
    }
    const at = this.elements.indexOf(document.activeElement);
    const moves = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.elements.length - 1 };
    const next = moves[event.key];
    if (at < 0 || !this.elements[next]) return;
    event.preventDefault();
    this.goTo(next + 1);
  }
}

document.addEventListener("scroll", placePopover, { passive: true });
