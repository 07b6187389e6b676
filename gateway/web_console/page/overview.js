// What the gateway does now: channels, queues, cost of today, alerts, what waits for an owner.

import { cost, count, figures, h, mark, seconds, section, table, time } from "./elements.js";
import { findings } from "./machine.js";
import { call } from "./operations.js";

const STATES = new Map([
  [true, () => mark("good", "connected")],
  [false, () => mark("bad", "not connected")],
  [null, () => mark("wait", "starting")],
]);

export async function overview({ act }) {
  const [status] = await call("status");
  if (!status.store.writable) {
    return [
      section(
        "The store cannot be written",
        findings(status.findings, act),
      ),
      channels(status),
      foot(status),
    ];
  }
  const waits = status.waits.people + status.waits.places;
  return [
    figures(
      ["Waiting messages", count(status.queued), status.queued ? `the oldest for ${seconds(status.oldest_seconds)}` : ""],
      ["Turns running", count(status.running)],
      ["Parts to deliver", count(status.undelivered), status.delayed_chats ? `${status.delayed_chats} chats wait` : ""],
      ["Given up", count(status.dead), status.dead ? "see below" : ""],
      ["Cost today", cost(status.today), `${count(sum(status.today, "calls"))} model calls`],
      ["Ask for access", h("a", { href: "#people" }, count(waits))],
    ),
    section(
      "Alerts",
      table(
        "Alerts",
        [
          ["What", (alert) => alert.text],
          ["State", (alert) => (alert.state === "firing" ? mark("bad", "open") : mark("good", "over"))],
          ["Owners", (alert) => (alert.told_at ? ["told ", time(alert.told_at)] : alert.untold ? "not told yet" : "–")],
          ["Since", (alert) => time(alert.since)],
        ],
        status.alerts,
        "There was no alert.",
      ),
    ),
    channels(status),
    section("Findings", findings(status.findings, act)),
    foot(status),
  ];
}

function channels(status) {
  return section(
    "Channels",
    table(
      "Channels",
      [
        ["Channel", ([name]) => name],
        ["State", ([, state]) => (STATES.get(state) ?? (() => String(state)))()],
        ["Rejected messages", ([name]) => refusals(status.unheard[name])],
      ],
      Object.entries(status.channels),
      "No channel is enabled.",
    ),
  );
}

function foot(status) {
  return h("p", { class: "foot" }, `Parlour ${status.version}, running since `, time(status.since), `, home ${status.home}`);
}

function refusals(each) {
  if (!each || !each.messages) return "none";
  const why = Object.entries(each.reasons).map(([reason, times]) => `${reason} ${times}`).join(", ");
  return `${count(each.messages)} of ${count(each.people)} people (${why})`;
}

function sum(lines, name) {
  return lines.reduce((total, line) => total + line[name], 0);
}
