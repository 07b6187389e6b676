// Model calls, tokens and cost, drawn and in a table, by day, person, chat, model or purpose.

import { cost, count, figures, h, section, svg, table } from "./elements.js";
import { call } from "./operations.js";

const GROUPS = { day: "Day", person: "Person", chat: "Chat", model: "Model", purpose: "Purpose" };
const SPANS = { "7d": "7 days", "30d": "30 days", "90d": "90 days", "365d": "a year" };
const DRAWN = 40; // bars; a table has all

export async function usage({ path, go }) {
  const asked = new URLSearchParams(path.replace(/^\?/, ""));
  const by = asked.get("by") in GROUPS ? asked.get("by") : "day";
  const since = asked.get("since") in SPANS ? asked.get("since") : "30d";
  const lines = await call("usage", { by, since });
  const select = (id, title, options, chosen) => [
    h("label", { for: id }, title),
    h("select", { id, name: id }, Object.entries(options).map(([value, text]) => h("option", { value, selected: value === chosen }, text))),
  ];
  const form = h(
    "form",
    {
      class: "row",
      onsubmit(event) {
        event.preventDefault();
        go(`usage/?${new URLSearchParams(new FormData(event.currentTarget))}`);
      },
    },
    select("by", "By", GROUPS, by),
    select("since", "The last", SPANS, since),
    h("button", { type: "submit", class: "primary" }, "Show"),
  );
  const sum = (name) => lines.reduce((total, line) => total + line[name], 0);
  const input = sum("tokens_in");
  const drawn = by === "day" ? lines.slice(-DRAWN) : lines.slice(0, DRAWN);
  return [
    form,
    figures(
      ["Model calls", count(sum("calls"))],
      ["Tokens", count(input + sum("tokens_out"))],
      ["Input from cache", `${input ? Math.round((100 * sum("tokens_cached")) / input) : 0}%`],
      ["Cost", cost(lines)],
    ),
    section(
      `Tokens by ${GROUPS[by].toLowerCase()}`,
      chart(drawn.map((line) => ({ name: line[by] || "(nobody)", tokens: line.tokens_in + line.tokens_out }))),
      lines.length > drawn.length ? h("p", { class: "foot" }, `${drawn.length} of ${lines.length} are drawn.`) : null,
      table(
        `Usage by ${GROUPS[by].toLowerCase()}`,
        [
          [GROUPS[by], (line) => line[by] || "(nobody)"],
          ["Calls", (line) => count(line.calls), "number"],
          ["Tokens in", (line) => count(line.tokens_in), "number"],
          ["Cached", (line) => count(line.tokens_cached), "number"],
          ["Tokens out", (line) => count(line.tokens_out), "number"],
          ["Cost", (line) => cost([line]), "number"],
        ],
        lines,
        "No model was called in this time.",
      ),
    ),
  ];
}

/** Draw bars to scale; the table below has the same figures, so that screen readers get those alone. */
function chart(bars) {
  if (bars.length === 0) return null;
  const most = Math.max(1, ...bars.map((bar) => bar.tokens));
  return h("div", { class: "chart", "aria-hidden": "true" }, bars.map((bar) => [
    h("span", {}, bar.name),
    svg("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none" }, svg("rect", { width: (1000 * bar.tokens) / most, height: 10, class: "bar" })),
  ]));
}
