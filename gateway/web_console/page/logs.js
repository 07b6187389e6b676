// The log as it is written, with filters.

import { h, mark, table, time } from "./elements.js";
import { call, CallError } from "./operations.js";

const ASK_AGAIN = 2_000; // milliseconds
const MOST_ROWS = 500;
const LEVELS = ["debug", "info", "warning", "error"];
const MARKS = { warning: "wait", error: "bad", critical: "bad" };
const COLUMNS = ["number", "timestamp", "level", "event", "logger"];

export async function logs() {
  const level = h("select", { id: "log-level" }, LEVELS.map((each) => h("option", { value: each }, each)));
  level.value = "info";
  const component = h("input", { id: "log-component", maxlength: 100, autocomplete: "off", placeholder: "channels.telegram" });
  const about = h("input", { id: "log-about", maxlength: 40, autocomplete: "off", placeholder: "t1a2b3c4" });
  const shown = h("div", {});
  let lines = [];
  let begun = 0; // counts the filters, so that an answer to an earlier one is dropped

  const read = async () => {
    const mine = begun;
    const given = { level: level.value, component: component.value.trim(), about: about.value.trim() };
    const found = await call("logs", { ...given, after: lines[0]?.number ?? 0 });
    if (mine !== begun || (found.length === 0 && shown.firstChild)) return;
    lines = [...found.reverse(), ...lines].slice(0, MOST_ROWS);
    shown.replaceChildren(rows(lines));
  };
  const filter = () => {
    begun += 1;
    lines = [];
    shown.replaceChildren();
    return read();
  };
  const follow = async () => {
    if (!shown.isConnected) return; // another view
    try {
      if (!document.hidden) await read();
    } catch (failure) {
      if (!(failure instanceof CallError)) throw failure; // the gateway restarts: the next time
    }
    setTimeout(follow, ASK_AGAIN);
  };
  await filter();
  setTimeout(follow, ASK_AGAIN);
  return [
    h(
      "form",
      { class: "row", "aria-label": "Filters", onsubmit: (event) => (event.preventDefault(), filter()), onchange: filter },
      h("label", { for: "log-level" }, "Level"),
      level,
      h("label", { for: "log-component" }, "Component"),
      component,
      h("label", { for: "log-about" }, "Reference or turn"),
      about,
    ),
    shown,
  ];
}

function rows(lines) {
  return table(
    "Lines of the log, the newest first",
    [
      ["When", (each) => time(each.timestamp)],
      ["Level", (each) => (MARKS[each.level] ? mark(MARKS[each.level], each.level) : each.level)],
      ["Event", (each) => each.event],
      ["Fields", (each) => fields(each)],
      ["Component", (each) => each.logger ?? "–"],
    ],
    lines,
    "No line of the log matches.",
  );
}

function fields(line) {
  const others = Object.entries(line).filter(([name]) => !COLUMNS.includes(name));
  return others.map(([name, value]) => `${name}=${value}`).join(" ") || "–";
}
