// Markdown's blocks: paragraphs, headings, code between fences, quotes, lists, tables, rules. No
// elements here.
//
// A block is {kind, line, end, ...}: it stands in the lines `line` to `end` of those it was parsed
// from. Text that is no block of these kinds, HTML for one, is a paragraph. Code needs fences: a
// model's indented lines are mostly lists.

const MOST_DEPTH = 8; // of quotes and lists inside each other; what is deeper is text

const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?=[ \t]|$)/;
const DELIMITER = /^[ \t]*(:?)-+(:?)[ \t]*$/;

const isBlank = (line) => line.trim() === "";

/** Columns of white space at the beginning. */
function indentOf(line) {
  let columns = 0;
  for (const letter of line) {
    if (letter === " ") columns++;
    else if (letter === "\t") columns += 4 - (columns % 4);
    else break;
  }
  return columns;
}

/** Without up to `columns` columns of white space. */
function dedent(line, columns) {
  let [at, column] = [0, 0];
  while (column < columns && (line[at] === " " || line[at] === "\t")) {
    column += line[at++] === " " ? 1 : 4 - (column % 4);
  }
  return line.slice(at);
}

/** A list item's first line: where its text begins, and of which list it is. */
function itemOf(line) {
  const found = ITEM.exec(line);
  if (!found || RULE.test(line)) return null;
  const [whole, space, marker] = found;
  const rest = line.slice(whole.length);
  const gap = indentOf(rest);
  const text = gap > 4 ? rest.slice(1) : rest.trimStart();
  return {
    text,
    indent: space.length,
    content: whole.length + (gap > 4 || text === "" ? 1 : gap),
    type: marker.at(-1),
    ordered: marker.length > 1,
    number: parseInt(marker, 10),
  };
}

function cellsOf(line) {
  const row = line.trim();
  const cells = [""];
  for (let i = row.startsWith("|") ? 1 : 0; i < row.length; i++) {
    if (row[i] === "|") {
      cells.push("");
    } else if (row[i] === "\\" && row[i + 1] === "|") {
      cells[cells.length - 1] += row[++i];
    } else {
      cells[cells.length - 1] += row[i];
    }
  }
  if (row.endsWith("|") && cells.length > 1 && cells.at(-1) === "") cells.pop();
  return cells.map((cell) => cell.trim());
}

/** The alignments of a table whose head is line `i`; null: no table begins there. */
function tableAt(lines, i) {
  if (i + 1 >= lines.length || !lines[i].includes("|") || !lines[i + 1].includes("-")) return null;
  const marks = cellsOf(lines[i + 1]).map((cell) => DELIMITER.exec(cell));
  if (marks.includes(null) || cellsOf(lines[i]).length !== marks.length) return null;
  return marks.map(([, left, right]) => (right ? (left ? "center" : "right") : "left"));
}

/** Whether line `i` ends a paragraph before it. */
function interrupts(lines, i) {
  const line = lines[i];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = itemOf(line);
  // "2024. That was ..." in the middle of a text is no list.
  if (item && item.text !== "" && (!item.ordered || item.number === 1)) return true;
  return tableAt(lines, i) !== null;
}

function fence(lines, line) {
  const found = FENCE.exec(lines[line]);
  if (!found) return null;
  const mark = found[1];
  const indent = indentOf(lines[line]);
  const code = [];
  let end = line + 1;
  for (let closed = false; end < lines.length && !closed; end++) {
    const text = lines[end].trim();
    closed = text.length >= mark.length && text === mark[0].repeat(text.length);
    if (!closed) code.push(dedent(lines[end], indent));
  }
  const language = lines[line].trim().slice(mark.length).trim().split(/\s/, 1)[0];
  return { kind: "code", language, text: code.join("\n"), line, end };
}

function heading(lines, line) {
  const found = HEADING.exec(lines[line]);
  if (!found) return null;
  let text = lines[line].slice(found[0].length).trim();
  let end = text.length;
  while (text[end - 1] === "#") end--;
  if (end === 0 || /\s/.test(text[end - 1])) text = text.slice(0, end).trimEnd();
  return { kind: "heading", level: found[1].length, text, line, end: line + 1 };
}

function rule(lines, line) {
  return RULE.test(lines[line]) ? { kind: "rule", line, end: line + 1 } : null;
}

function quote(lines, line, depth) {
  let end = line;
  const inside = [];
  while (end < lines.length && QUOTE.test(lines[end])) {
    inside.push(lines[end++].replace(QUOTE, ""));
  }
  if (end === line) return null;
  return { kind: "quote", children: parseBlocks(inside, depth + 1), line, end };
}

function nextText(lines, i) {
  while (i < lines.length && isBlank(lines[i])) i++;
  return i;
}

/** An item's lines as if it stood alone, and where it ends. */
function itemBody(lines, line, item) {
  const body = [item.text];
  let end = line + 1;
  while (end < lines.length) {
    const next = nextText(lines, end);
    if (next === lines.length) break;
    const inside = indentOf(lines[next]) >= item.indent + 2;
    if (next > end) {
      if (!inside) break;
      body.push("");
      end = next;
    } else if (!inside && (itemOf(lines[end]) || interrupts(lines, end))) {
      break;
    }
    body.push(dedent(lines[end], item.content));
    end++;
  }
  return { body, end };
}

function list(lines, line, depth) {
  const first = itemOf(lines[line]);
  if (!first) return null;
  const items = [];
  let tight = true;
  let end = line;
  for (let next = line; next < lines.length; next = nextText(lines, end)) {
    const item = itemOf(lines[next]);
    if (item?.type !== first.type) break;
    if (next > end) tight = false;
    const { body, end: itemEnd } = itemBody(lines, next, item);
    items.push(parseBlocks(body, depth + 1));
    end = itemEnd;
  }
  return { kind: "list", ordered: first.ordered, start: first.number, tight, items, line, end };
}

function table(lines, line) {
  const alignments = tableAt(lines, line);
  if (!alignments) return null;
  const rows = [];
  let end = line + 2;
  while (end < lines.length && lines[end].includes("|") && !interrupts(lines, end)) {
    rows.push(cellsOf(lines[end++]).slice(0, alignments.length));
  }
  return { kind: "table", head: cellsOf(lines[line]), rows, alignments, line, end };
}

function paragraph(lines, line) {
  let end = line + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end)) end++;
  const text = lines
    .slice(line, end)
    .map((part) => part.trim())
    .join("\n");
  return { kind: "paragraph", text, line, end };
}

/** The blocks of `lines`; `depth`: in how many quotes and lists they are. */
export function parseBlocks(lines, depth = 0) {
  const kinds = depth < MOST_DEPTH ? [fence, heading, rule, quote, list, table] : [fence];
  const blocks = [];
  for (let i = nextText(lines, 0); i < lines.length; i = nextText(lines, i)) {
    let block = null;
    for (const kind of kinds) block ??= kind(lines, i, depth);
    block ??= paragraph(lines, i);
    blocks.push(block);
    i = block.end;
  }
  return blocks;
}
