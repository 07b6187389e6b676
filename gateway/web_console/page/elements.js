// Building blocks of the views. Text is only ever set as text: nothing here makes markup of it.

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const SVG = "http://www.w3.org/2000/svg";

/** Return an element; `on…` are listeners, `true` is an attribute without a value, children are elements or text. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Return an element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false).map(shown));
  return element;
}

/** Text of others may hold characters that turn its direction or hide it. */
function shown(child) {
  return child instanceof Node ? child : String(child).replace(CONTROLS, "\ufffd");
}

/** Return a section with a heading. */
export function section(title, ...children) {
  const id = `h-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h("section", { "aria-labelledby": id }, h("h3", { id }, title), children);
}

/**
 * Return a table. Each column is [title, (row) => cell, kind]; kind "number" is aligned to the right. The first column
 * names the row. Below 30rem a row is a card, whose cells are named by `data-title`.
 */
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  const cell = (row, [title, value, kind], place) =>
    h(place === 0 ? "th" : "td", { "data-title": title, class: kind, scope: place === 0 ? "row" : null }, value(row));
  return h(
    "table",
    {},
    h("caption", { class: "spoken" }, caption),
    h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((column, place) => cell(row, column, place))))),
  );
}

/** Return figures with their names, as a list. */
export function figures(...pairs) {
  return h("dl", { class: "figures" }, pairs.map(([name, value, note]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, note) : null))));
}

/** Return a word with a mark beside it; the colour alone says nothing. */
export function mark(kind, text) {
  const sign = { good: "●", bad: "▲", wait: "◌" }[kind];
  return h("span", { class: `mark ${kind}` }, h("span", { "aria-hidden": "true" }, sign), "\u00a0", text);
}

export function button(text, onclick, attributes = {}) {
  return h("button", { type: "button", onclick, ...attributes }, text);
}

/** Ask before something is done; return true for yes. */
export async function ask(text, yes) {
  const dialog = document.getElementById("question");
  document.getElementById("question-text").textContent = text;
  dialog.querySelector("[value=yes]").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "yes";
}

/** Say something to people who see it, and to those who hear it. */
export function say(text) {
  document.getElementById("spoken").textContent = text;
}

// Figures as people read them.

const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function time(text) {
  return text ? h("time", { datetime: text, title: text }, moment.format(new Date(text))) : "–";
}

export const count = (number) => Number(number).toLocaleString("en");

export function seconds(number) {
  if (number < 1) return `${Math.round(number * 1000)} ms`;
  if (number < 120) return `${number.toFixed(number < 10 ? 1 : 0)} s`;
  return number < 7200 ? `${Math.round(number / 60)} min` : `${Math.round(number / 3600)} h`;
}

/** The cost of lines of `usage`: what is known, and how many calls have no price. */
export function cost(lines) {
  const known = lines.reduce((sum, line) => sum + line.known_cost, 0);
  const unpriced = lines.reduce((sum, line) => sum + line.unpriced_calls, 0);
  if (unpriced && !known) return "unknown"; // calls that failed cost nothing
  return `$${known.toFixed(4)}${unpriced ? ` and ${count(unpriced)} calls of unknown cost` : ""}`;
}
