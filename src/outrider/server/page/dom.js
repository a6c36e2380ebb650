// Elements without markup strings: whatever a model says becomes text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined || value === null) continue;
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else {
      const flag = name.startsWith("aria-") ? "true" : "";
      element.setAttribute(name, value === true ? flag : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** An element; strings among its children are text, attributes named on... are listeners. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for a part of an SVG picture. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A button with a name; `classes` say how it looks. */
export function button(name, classes, onclick, attributes = {}) {
  return el("button", { type: "button", class: classes, onclick, ...attributes }, name);
}

export const byId = (id) => document.getElementById(id);

/** Calls `draw` soon after it is asked for, at most once in `milliseconds`. */
export function rarely(milliseconds, draw) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    setTimeout(() => {
      due = false;
      draw();
    }, milliseconds);
  };
}

/** An object kept in the browser's local storage; {} when there is none that can be read. */
export function readStored(name) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? {};
  } catch (error) {
    console.warn(`${name} in the local storage cannot be read: ${error.message}`);
    return {};
  }
}

/** 1234 as "1,234", 0.8612 as "0.86", 12.34 as "12.3". */
export function shortNumber(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
}

export const percent = (share) => `${Math.round(share * 100)} %`;
