// The sampling drawer. What is left blank is not sent: then the server's default holds.

import { serverRule, UNKNOWN_SERVER } from "./draft_limits.js";
import { byId, el, readStored } from "./dom.js";

const STORE_NAME = "outrider.settings";

const MAX_INT32 = 2147483647;

// `slider` has bounds of its own: what people mostly choose.
const NUMBERS = [
  {
    name: "temperature",
    label: "Temperature",
    ...{ min: 0, step: "any", slider: { min: 0, max: 2, step: 0.05 } },
    help: "0 always takes the likeliest token",
  },
  {
    name: "top_p",
    label: "Top-p",
    ...{ min: 0.001, max: 1, step: "any", slider: { min: 0.05, max: 1, step: 0.05 } },
    help: "likeliest tokens up to this share",
  },
  {
    name: "top_k",
    label: "Top-k",
    ...{ min: 1, max: MAX_INT32, step: 1 },
    help: "this many of the likeliest tokens",
  },
  {
    name: "max_tokens",
    label: "Max tokens",
    ...{ min: 1, max: MAX_INT32, step: 1 },
    help: "where an answer ends at the latest",
  },
  {
    name: "seed",
    label: "Seed",
    ...{ min: Number.MIN_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER, step: 1 },
    help: "the same seed, the same answer",
  },
];

export class Settings {
  #server = UNKNOWN_SERVER;
  #values = readStored(STORE_NAME);

  constructor() {
    const dialog = byId("settings");
    byId("open-settings").addEventListener("click", () => dialog.showModal());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // beside the drawer
    });
    // A number that cannot be used must not get lost: the drawer stays open and says so.
    dialog.addEventListener("close", () => {
      const form = byId("settings-form");
      if (form.checkValidity()) return;
      dialog.showModal();
      form.reportValidity();
    });
    byId("reset-settings").addEventListener("click", () => {
      this.#values = {};
      this.#store();
      this.#draw();
    });
    this.#draw();
  }

  /** What the server says of its drafts: its k bounds the choice. */
  setServer(server) {
    this.#server = server;
    this.#draw();
  }

  get #k() {
    return this.#server.num_speculative_tokens;
  }

  messages(turns) {
    const system = this.#values.system?.trim();
    return system ? [{ role: "system", content: system }, ...turns] : [...turns];
  }

  /** The fields of a request that were chosen here. */
  fields() {
    const fields = {};
    for (const { name } of NUMBERS) {
      if (this.#values[name] !== undefined) fields[name] = this.#values[name];
    }
    if (this.#values.k !== undefined) {
      fields.speculation = { num_speculative_tokens: Math.min(this.#values.k, this.#k) };
    }
    return fields;
  }

  #set(name, value) {
    if (value === undefined) delete this.#values[name];
    else this.#values[name] = value;
    this.#store();
  }

  #store() {
    localStorage.setItem(STORE_NAME, JSON.stringify(this.#values));
    byId("open-settings").dataset.changed = String(Object.keys(this.#values).length > 0);
  }

  #draw() {
    byId("settings-fields").replaceChildren(
      this.#system(),
      this.#drafts(),
      ...NUMBERS.map((field) => this.#number(field)),
    );
    this.#store();
  }

  #system() {
    const input = el("textarea", {
      id: "set-system",
      rows: 3,
      placeholder: "None",
      oninput: () => this.#set("system", input.value || undefined),
    });
    input.value = this.#values.system ?? "";
    return el("div", { class: "field" }, el("label", { for: input.id }, "System prompt"), input);
  }

  #drafts() {
    const choice = (value, name) => {
      const input = el("input", {
        type: "radio",
        name: "k",
        value: value ?? "",
        onchange: () => this.#set("k", value),
      });
      input.checked = this.#values.k === value;
      return el("label", {}, input, el("span", {}, name));
    };
    const counts = Array.from({ length: this.#k + 1 }, (_, k) => choice(k, `${k}`));
    return el(
      "fieldset",
      { class: "field" },
      el("legend", {}, "Drafts per step (k)"),
      el("div", { class: "switch" }, choice(undefined, "Default"), ...counts),
      el("small", {}, "changes the speed, never the answer"),
      ...this.#draftNotes().map((note) => el("small", { class: "draft-note" }, note)),
    );
  }

  /** Why the number that was chosen is not what will be drafted. */
  #draftNotes() {
    const notes = [];
    const chosen = this.#values.k;
    if (chosen > this.#k && this.#server !== UNKNOWN_SERVER) {
      notes.push(`k = ${chosen} was chosen for another server; this one drafts ${this.#k} at most.`);
    }
    const rule = serverRule(this.#server);
    return rule ? [...notes, rule] : notes;
  }

  #number({ name, label, slider, help, ...bounds }) {
    const id = `set-${name}`;
    const helpId = `${id}-help`;
    const text = { type: "number", placeholder: "default", "aria-describedby": helpId };
    const input = el("input", { id, ...text, ...bounds });
    const unheard = { tabindex: -1, "aria-hidden": true }; // the number says the same
    const range = slider && el("input", { type: "range", ...slider, ...unheard });
    const note = el("small", { id: helpId }, help);
    const value = this.#values[name];
    input.value = value ?? "";
    if (range) range.value = value ?? 1;
    input.addEventListener("input", () => {
      const { valid } = input.validity;
      note.textContent = valid ? help : input.validationMessage;
      note.classList.toggle("invalid", !valid);
      if (!valid) return;
      this.#set(name, input.value === "" ? undefined : input.valueAsNumber);
      if (range && input.value !== "") range.value = input.value;
    });
    range?.addEventListener("input", () => {
      input.value = range.value;
      input.dispatchEvent(new Event("input"));
    });
    return el(
      "div",
      { class: slider ? "field" : "field half" },
      el("label", { for: id }, label),
      el("div", { class: "field-line" }, range || null, input),
      note,
    );
  }
}
