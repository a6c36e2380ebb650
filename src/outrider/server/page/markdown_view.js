// Markdown on the page, as it grows: elements for the blocks that these modules know, text for all
// else. Nothing that a model writes is parsed as HTML.

import { el } from "./dom.js";
import { parseBlocks } from "./markdown_blocks.js";
import { parseInline } from "./markdown_inline.js";

// A last line that is not whole may still change the block before the one that it seems to begin.
const UNSETTLED_BLOCKS = 2;

function inlineElement(node) {
  if (typeof node === "string") return node;
  switch (node.kind) {
    case "break":
      return el("br");
    case "code":
      return el("code", {}, node.text);
    case "link": {
      const away = { target: "_blank", rel: "noopener noreferrer nofollow" };
      return fill(el("a", { href: node.href, title: node.href, ...away }), node.children);
    }
    default:
      return fill(el(node.kind), node.children);
  }
}

/** One by one: an answer may have more nodes than a call takes arguments. */
function fill(element, nodes) {
  for (const node of nodes) element.append(inlineElement(node));
  return element;
}

const textElement = (tag, text, attributes = {}) => fill(el(tag, attributes), parseInline(text));

function itemElement(blocks, tight) {
  const item = el("li");
  for (const block of blocks) {
    if (tight && block.kind === "paragraph") fill(item, parseInline(block.text));
    else item.append(blockElement(block));
  }
  return item;
}

function tableElement({ head, rows, alignments }) {
  const rowOf = (tag, cells) => {
    const row = el("tr");
    cells.forEach((cell, i) => row.append(textElement(tag, cell, { class: alignments[i] })));
    return row;
  };
  const body = el("tbody");
  for (const row of rows) body.append(rowOf("td", row));
  const whole = el("table", {}, el("thead", {}, rowOf("th", head)), body);
  return el("div", { class: "wide", tabindex: 0 }, whole);
}

function blockElement(block) {
  switch (block.kind) {
    case "heading":
      // The page's own headings go down to h3.
      return textElement(`h${Math.min(6, block.level + 3)}`, block.text);
    case "rule":
      return el("hr");
    case "code":
      return el(
        "pre",
        { class: "code", tabindex: 0, "data-language": block.language || false },
        el("code", {}, block.text),
      );
    case "quote": {
      const quote = el("blockquote");
      for (const child of block.children) quote.append(blockElement(child));
      return quote;
    }
    case "list": {
      const start = block.ordered && block.start !== 1 ? block.start : false;
      const list = el(block.ordered ? "ol" : "ul", { start });
      for (const item of block.items) list.append(itemElement(item, block.tight));
      return list;
    }
    case "table":
      return tableElement(block);
    default:
      return textElement("p", block.text);
  }
}

export class MarkdownView {
  #tail = ""; // source of the blocks that may still change
  #unsettled = []; // their elements
  #drawn = true;

  /** Draws into `element`. */
  constructor(element) {
    this.element = element;
  }

  append(text) {
    this.#tail += text;
    this.#drawn = false;
  }

  /** Makes the elements of what came; those of blocks that are whole stay as they are. */
  draw() {
    if (this.#drawn) return;
    this.#drawn = true;
    const lines = this.#tail.split("\n");
    const blocks = parseBlocks(lines);
    for (const element of this.#unsettled) element.remove();
    const elements = blocks.map(blockElement);
    for (const element of elements) this.element.append(element);
    this.#unsettled = elements.slice(-UNSETTLED_BLOCKS);
    if (blocks.length <= UNSETTLED_BLOCKS) return;
    this.#tail = lines.slice(blocks.at(-UNSETTLED_BLOCKS).line).join("\n");
  }
}
