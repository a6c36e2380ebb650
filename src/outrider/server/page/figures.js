// The panel beside the chat: how well one answer was guessed.

import { draftFate, tokenKind } from "./acceptance.js";
import { chosenDrafts, serverRule, shortfalls, UNKNOWN_SERVER } from "./draft_limits.js";
import { byId, el, percent, rarely, shortNumber, svg } from "./dom.js";

const KINDS = ["accepted", "corrected", "bonus", "plain"];
const KIND_MEANING = {
  accepted: "drafted, and right",
  corrected: "drawn where a draft was wrong",
  bonus: "drawn after drafts that were all right",
  plain: "drawn with nothing drafted",
};
const MOST_COLUMNS = 240; // of the ladder; older steps scroll out

function headline(sums) {
  const figure = (value, what, more) =>
    el(
      "div",
      { class: "figure" },
      el("strong", {}, value),
      el("span", {}, what),
      el("small", {}, more),
    );
  return el(
    "div",
    { class: "headline" },
    figure(
      sums.meanLength.toFixed(2),
      "tokens per step",
      `${shortNumber(sums.numSpecSteps)} verify steps`,
    ),
    figure(
      sums.numDrafts ? percent(sums.rate) : "–",
      "of drafts accepted",
      `${shortNumber(sums.numAccepted)} of ${shortNumber(sums.numDrafts)}`,
    ),
  );
}

function composition(sums) {
  const parts = KINDS.filter((kind) => sums.kinds[kind] > 0);
  const bar = el("div", { class: "share-bar", "aria-hidden": true });
  for (const kind of parts) {
    const part = el("i", { class: `strong ${kind}` });
    part.style.flexGrow = sums.kinds[kind];
    bar.append(part);
  }
  const row = (kind) =>
    el(
      "li",
      { "data-kind": kind, "data-count": sums.kinds[kind] },
      el("i", { class: `swatch strong ${kind}` }),
      el("b", {}, kind),
      el("span", {}, KIND_MEANING[kind]),
      el("output", {}, shortNumber(sums.kinds[kind])),
    );
  const list = el("ul", { class: "kinds" }, ...parts.map(row));
  if (sums.fates.unused > 0) {
    list.append(
      el(
        "li",
        { "data-kind": "unused", "data-count": sums.fates.unused },
        el("i", { class: "swatch hollow" }),
        el("b", {}, "unused"),
        el("span", {}, "right drafts after the end"),
        el("output", {}, shortNumber(sums.fates.unused)),
      ),
    );
  }
  return section("Tokens", bar, list);
}

function section(title, ...children) {
  return el("section", {}, el("h3", {}, title), ...children);
}

function byPosition(sums) {
  const row = (drafted, index) => {
    const share = sums.accepted[index] / drafted;
    const fill = el("i", { class: "strong accepted" });
    fill.style.width = `${100 * share}%`;
    return el(
      "li",
      { "data-accepted": sums.accepted[index], "data-drafted": drafted },
      el("span", {}, `${index + 1}`),
      el("div", { class: "track" }, fill),
      el("output", {}, percent(share)),
    );
  };
  return section(
    "Accepted by position",
    el("ol", { class: "positions" }, ...sums.drafted.map(row)),
  );
}

function histogram(sums) {
  const most = Math.max(...sums.lengths, 1);
  const row = (count, accepted) => {
    const kind = accepted === sums.lengths.length - 1 ? "bonus" : "corrected";
    const fill = el("i", { class: `strong ${kind}` });
    fill.style.height = `${(100 * count) / most}%`;
    return el(
      "li",
      { "data-count": count },
      el("output", {}, shortNumber(count)),
      el("div", { class: "column" }, fill),
      el("span", {}, `${accepted + 1}`),
    );
  };
  return section(
    "Steps by length",
    el("ol", { class: "histogram" }, ...sums.lengths.map(row)),
    el("p", { class: "axis" }, "tokens from a step"),
  );
}

// One column per step: a cell per draft, filled while drafts were right, and on top the token that
// the model drew itself.
function ladder(answer) {
  const { steps } = answer;
  const first = Math.max(0, steps.length - MOST_COLUMNS);
  const shown = steps.slice(first);
  const rows = 1 + Math.max(...shown.map((step) => step.drafts.length));
  const [cell, gap] = [9, 2];
  const pitch = cell + gap;
  const height = rows * pitch;
  const picture = svg("svg", {
    width: shown.length * pitch,
    height,
    viewBox: `0 0 ${shown.length * pitch} ${height}`,
    role: "img",
    "aria-label": `Tokens from each of ${steps.length} steps`,
  });
  shown.forEach((step, column) => {
    const number = first + column + 1;
    const group = svg("g", {
      class: "rung",
      "data-step": number,
      onpointerenter: (event) => answer.look(number, event.currentTarget),
      onpointerleave: () => answer.look(null),
      onclick: () => answer.goTo(number),
    });
    const place = (row, kind) =>
      svg("rect", {
        class: kind,
        x: column * pitch,
        y: height - (row + 1) * pitch + gap,
        width: cell,
        height: cell,
        rx: 2,
      });
    group.append(
      svg("rect", { class: "reach", x: column * pitch - gap / 2, y: 0, width: pitch, height }),
    );
    step.drafts.forEach((_, row) => {
      if (row !== step.num_accepted) group.append(place(row, draftFate(step, row)));
    });
    if (step.tokens.length > step.num_accepted) {
      group.append(place(step.num_accepted, tokenKind(step, step.num_accepted)));
    }
    picture.append(group);
  });
  return section("Step by step", el("div", { class: "ladder" }, picture));
}

// Why there were fewer drafts than were chosen; null where there were not.
function limits(answer, server) {
  const chosen = chosenDrafts(answer.body, server);
  const note = (text) => el("p", { class: "figures-empty draft-limits" }, text);
  if (server.num_speculative_tokens === 0) {
    return answer.sums.numDrafts > 0 ? null : note(serverRule(server) || "Nothing was drafted.");
  }
  if (chosen === 0) return note("Nothing was drafted: the settings ask for k = 0.");
  const found = shortfalls(answer.steps, chosen, server);
  if (found.length === 0) return null;
  const row = ({ name, count, reason }) =>
    el(
      "li",
      { "data-limit": name, "data-count": count },
      el("b", {}, `${shortNumber(count)} ${count === 1 ? "step" : "steps"}`),
      el("span", {}, reason),
    );
  const list = el("ul", { class: "limits draft-limits" }, ...found.map(row));
  return section(`Fewer than k = ${chosen} drafts`, list);
}

/** Draws the figures of the answer that was chosen, and again while it grows. */
export class Figures {
  #answer = null;
  #server = UNKNOWN_SERVER;

  draw = rarely(120, () => this.#draw());

  /** An answer has `title`, `steps`, their `sums`, `look(step or null, element)`, `goTo(step)`. */
  show(answer) {
    this.#answer = answer;
    this.draw();
  }

  /** What the server says of its drafts. */
  setServer(server) {
    this.#server = server;
    this.draw();
  }

  get answer() {
    return this.#answer;
  }

  #draw() {
    const body = byId("figures-body");
    const steps = this.#answer?.steps ?? [];
    byId("figures-of").textContent = this.#answer ? this.#answer.title : "No answer yet";
    if (steps.length === 0) {
      const note = this.#answer
        ? "No tokens so far."
        : "How many drafts were right, and where, shows here.";
      body.replaceChildren(el("p", { class: "figures-empty" }, note));
      return;
    }
    const sums = this.#answer.sums;
    const scrolled = body.querySelector(".ladder");
    const beyond = scrolled ? scrolled.scrollWidth - scrolled.clientWidth - scrolled.scrollLeft : 0;
    const parts = [headline(sums), composition(sums)];
    if (sums.numDrafts > 0) {
      parts.push(el("div", { class: "pair" }, byPosition(sums), histogram(sums)));
    }
    const why = limits(this.#answer, this.#server);
    if (why) parts.push(why);
    parts.push(ladder(this.#answer));
    body.replaceChildren(...parts);
    const moved = body.querySelector(".ladder");
    moved.scrollLeft = beyond < 24 ? moved.scrollWidth : scrolled.scrollLeft;
  }

  /** Marks a step's column. */
  mark(number) {
    document.querySelector(".rung.looked-at")?.classList.remove("looked-at");
    document.querySelector(`.rung[data-step="${number}"]`)?.classList.add("looked-at");
  }
}
