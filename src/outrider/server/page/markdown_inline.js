// The inside of a Markdown block as nodes: emphasis, code, links, line breaks. No elements here.
//
// A node is a string or {kind, ...}: "strong" and "em" with children, "code" with text, "link" with
// children and href, "break". Time is linear in the text's length and the tree is shallow, whatever
// a model writes: at most MOST_OPEN marks wait for their other end, those beyond are text.

const MOST_OPEN = 16;
const SCHEMES = ["http:", "https:", "mailto:"];
const SPECIAL = /[\\`*_[\]!<\n]|\bhttps?:\/\//g;
const DESTINATION =
  /\([ \n]?(?:<([^<>\n]{1,2000})>|((?:[^\s()<>]|\([^\s()<>]{0,500}\)){1,2000}))(?:[ \n](?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?[ \n]?\)/y;
const AUTOLINK = /<([a-z][a-z0-9+.-]{1,31}:[^\s<>]{1,2000})>/iy;
const BARE_LINK = /https?:\/\/[^\s<>"`*|]{1,2000}/y;
const FACTORS = /^(?:\d[a-z\d]|[a-z]\d)$/i;
const PUNCTUATION = /[\p{P}\p{S}]/u;

/** The address as a link may have it; null for schemes that could run or read something. */
export function safeAddress(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null; // relative: there is nothing of this server's to link to
  }
  return SCHEMES.includes(url.protocol) ? url.href : null;
}

/** By the length of runs of backticks: where they begin. */
function backtickRuns(text) {
  const runs = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!runs.has(run.length)) runs.set(run.length, { starts: [], next: 0 });
    runs.get(run.length).starts.push(index);
  }
  return runs;
}

function codeOf(text) {
  const flat = text.replaceAll("\n", " ");
  const padded = flat.startsWith(" ") && flat.endsWith(" ") && flat.trim() !== "";
  return { kind: "code", text: padded ? flat.slice(1, -1) : flat };
}

class InlineParser {
  // Marks that wait for their other end, inside each other; the outermost is the block itself.
  #open = [{ mark: "", count: 0, children: [] }];

  constructor(text) {
    this.text = text;
    this.at = 0;
    this.runs = backtickRuns(text);
  }

  parse() {
    while (this.at < this.text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(this.text);
      const end = found ? found.index : this.text.length;
      if (end > this.at) this.#add(this.text.slice(this.at, end));
      this.at = end;
      if (found) this.#special(found[0]);
    }
    this.#dropAbove(0);
    return this.#open[0].children;
  }

  #add(node) {
    this.#open.at(-1).children.push(node);
  }

  #literal(count) {
    this.#add(this.text.slice(this.at, this.at + count));
    this.at += count;
  }

  // Marks above `index` have no other end: they are text.
  #dropAbove(index) {
    while (this.#open.length - 1 > index) {
      const { mark, count, children } = this.#open.pop();
      this.#add(mark.repeat(count));
      for (const child of children) this.#add(child);
    }
  }

  #special(first) {
    switch (first) {
      case "\\":
        return this.#escape();
      case "`":
        return this.#code();
      case "*":
      case "_":
        return this.#emphasis(first);
      case "[":
        return this.#openLink("[");
      case "!":
        return this.text[this.at + 1] === "[" ? this.#openLink("![") : this.#literal(1);
      case "]":
        return this.#closeLink();
      case "<":
        return this.#autolink();
      case "\n":
        this.#add({ kind: "break" });
        this.at++;
        return undefined;
      default:
        return this.#bareLink();
    }
  }

  #escape() {
    const next = this.text[this.at + 1];
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return this.#literal(1);
    this.at++;
    return this.#literal(1);
  }

  #code() {
    const start = this.at;
    let length = 1;
    while (this.text[start + length] === "`") length++;
    const run = this.runs.get(length);
    // A run that an escape has cut is none of those.
    while (run && run.starts[run.next] <= start) run.next++;
    const end = run?.starts[run.next];
    if (end === undefined) return this.#literal(length);
    this.#add(codeOf(this.text.slice(start + length, end)));
    this.at = end + length;
    return undefined;
  }

  #emphasis(mark) {
    let length = 1;
    while (this.text[this.at + length] === mark) length++;
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + length] ?? " ";
    const [spaceBefore, spaceAfter] = [/\s/.test(before), /\s/.test(after)];
    const [signBefore, signAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
    const left = !spaceAfter && (!signAfter || spaceBefore || signBefore);
    const right = !spaceBefore && (!signBefore || spaceAfter || signAfter);
    // Underscores inside words are none of Markdown's, and 2*3*4 and 2**3 are products and powers.
    const word = mark === "_" || FACTORS.test(before + after);
    const opens = left && (!word || !right || signBefore);
    const closes = right && (!word || !left || signAfter);
    const both = opens && closes;
    let rest = length;
    while (closes && rest > 0) {
      const index = this.#opener(mark, length, both);
      if (index < 0) break;
      rest -= this.#wrap(index, rest);
    }
    if (rest > 0 && opens && rest <= 3 && this.#open.length <= MOST_OPEN) {
      this.#open.push({ mark, count: rest, length, both, children: [] });
    } else if (rest > 0) {
      this.#add(mark.repeat(rest));
    }
    this.at += length;
  }

  // The innermost mark that `length` of them close; emphasis does not leave the text of a link.
  #opener(mark, length, both) {
    for (let i = this.#open.length - 1; i > 0; i--) {
      const open = this.#open[i];
      if (open.mark.endsWith("[") && !open.dead) return -1;
      if (open.mark !== mark) continue;
      const ambiguous = (both || open.both) && (open.length + length) % 3 === 0;
      if (!ambiguous || (open.length % 3 === 0 && length % 3 === 0)) return i;
    }
    return -1;
  }

  // Gives what is inside emphasis; returns how many marks of `most` that took.
  #wrap(index, most) {
    this.#dropAbove(index);
    const open = this.#open[index];
    const count = Math.min(2, open.count, most);
    const node = { kind: count === 2 ? "strong" : "em", children: open.children };
    open.count -= count;
    if (open.count > 0) {
      open.children = [node];
    } else {
      this.#open.pop();
      this.#add(node);
    }
    return count;
  }

  #openLink(mark) {
    if (this.#open.length > MOST_OPEN) return this.#literal(mark.length);
    this.#open.push({ mark, count: 1, children: [] });
    this.at += mark.length;
    return undefined;
  }

  #inLink() {
    return this.#open.some(({ mark, dead }) => mark.endsWith("[") && !dead);
  }

  #closeLink() {
    const index = this.#open.findLastIndex(({ mark, dead }) => mark.endsWith("[") && !dead);
    if (index < 0) return this.#literal(1);
    DESTINATION.lastIndex = this.at + 1;
    const found = DESTINATION.exec(this.text);
    const href = found && safeAddress(found[1] ?? found[2]);
    if (!href) {
      this.#open[index].dead = true;
      if (index === this.#open.length - 1) this.#dropAbove(index - 1);
      return this.#literal(1);
    }
    this.#dropAbove(index);
    const { children } = this.#open.pop();
    for (const open of this.#open) open.dead = true; // there are no links in links
    this.#add({ kind: "link", href, children: children.length > 0 ? children : [href] });
    this.at = DESTINATION.lastIndex;
    return undefined;
  }

  #autolink() {
    AUTOLINK.lastIndex = this.at;
    const found = AUTOLINK.exec(this.text);
    const href = found && !this.#inLink() && safeAddress(found[1]);
    if (!href) return this.#literal(1);
    this.#add({ kind: "link", href, children: [found[1]] });
    this.at = AUTOLINK.lastIndex;
    return undefined;
  }

  #bareLink() {
    BARE_LINK.lastIndex = this.at;
    const found = BARE_LINK.exec(this.text);
    // What ends a sentence or encloses the address is no part of it.
    let text = found?.[0] ?? "";
    while (/[.,;:!?'\]]$/.test(text) || (text.endsWith(")") && !text.includes("("))) {
      text = text.slice(0, -1);
    }
    const href = !this.#inLink() && safeAddress(text);
    if (!href) return this.#literal(4);
    this.#add({ kind: "link", href, children: [text] });
    this.at += text.length;
    return undefined;
  }
}

/** The nodes of a block's text. */
export const parseInline = (text) => new InlineParser(text).parse();
