// What the gateway does now: whether all is well, what is not and its remedy, then figures of the last day.

import { cost, count, figures, h, mark, seconds, section, svg, table, time } from "./elements.js";
import { findings } from "./machine.js";
import { call, CallError } from "./operations.js";

const STATES = new Map([
  [true, () => mark("good", "connected")],
  [false, () => mark("bad", "not connected")],
  [null, () => mark("wait", "starting")],
]);

export async function overview({ act }) {
  const [status] = await call("status");
  const wrong = status.findings.filter((each) => each.level !== "OK");
  if (!status.store.writable) {
    return [
      verdict(wrong.length || 1, 0, 0),
      section("The store cannot be written", findings(status.findings, act)),
      channels(status),
      foot(status),
    ];
  }
  const [activity, trouble] = await recent();
  const { hours, failed } = activity;
  const open = status.alerts.filter((each) => each.state === "firing");
  const waits = status.waits.people + status.waits.places;
  return [
    verdict(wrong.length, open.length, failed.length, trouble),
    wrong.length ? section("What is wrong", findings(wrong, act)) : null,
    open.length ? section("Alerts", alerts(status.alerts)) : null,
    failed.length ? section("Failed in the last hour", failures(failed)) : null,
    figures(
      ["Waiting messages", count(status.queued), status.queued ? `the oldest for ${seconds(status.oldest_seconds)}` : ""],
      ["Turns running", count(status.running)],
      ["Parts to deliver", count(status.undelivered), status.delayed_chats ? `${status.delayed_chats} chats wait` : ""],
      ["Given up", count(status.dead), status.dead ? "see what is wrong" : ""],
      ["Cost today", cost(status.today), `${count(sum(status.today, "calls"))} model calls`],
      ["Ask for access", h("a", { href: "#people" }, count(waits))],
    ),
    section("The last 24 hours", trends(hours)),
    channels(status),
    open.length ? null : section("Alerts", alerts(status.alerts)),
    foot(status),
  ];
}

/** Return the activity and "", or an empty one and why it is not known. */
async function recent() {
  try {
    return [(await call("activity"))[0], ""];
  } catch (failure) {
    if (!(failure instanceof CallError) || failure.status === 401) throw failure;
    return [{ hours: [], failed: [] }, failure.message];
  }
}

/** Say in one line whether anything needs an owner. */
function verdict(wrong, open, failed, trouble = "") {
  const parts = [
    wrong ? `${count(wrong)} ${wrong === 1 ? "finding" : "findings"}` : "",
    open ? `${count(open)} open ${open === 1 ? "alert" : "alerts"}` : "",
    failed ? `${count(failed)} failed ${failed === 1 ? "turn" : "turns"} in the last hour` : "",
    trouble ? `failed turns are not known (${trouble})` : "",
  ].filter(Boolean);
  const line = parts.length ? mark("bad", `${parts.join(", ")}: see below`) : mark("good", "All is well");
  return h("p", { class: "verdict", role: "status" }, line);
}

function failures(failed) {
  return table(
    "Turns that failed in the last hour, the newest first",
    [
      ["Turn", (turn) => h("a", { href: `#turns/${turn.reference}` }, turn.reference)],
      ["When", (turn) => time(turn.at)],
      ["Chat", (turn) => h("span", { title: turn.key }, turn.title || turn.key)],
      ["Reason", (turn) => turn.reason],
    ],
    failed,
    "",
  );
}

function alerts(found) {
  return table(
    "Alerts",
    [
      ["What", (alert) => alert.text],
      ["State", (alert) => (alert.state === "firing" ? mark("bad", "open") : mark("good", "over"))],
      ["Owners", (alert) => (alert.told_at ? ["told ", time(alert.told_at)] : alert.untold ? "not told yet" : "–")],
      ["Since", (alert) => time(alert.since)],
    ],
    found,
    "There was no alert.",
  );
}

/** Draw messages, waits and cost by the hour; each drawing has its figures in words, for those who do not see it. */
function trends(hours) {
  if (hours.length === 0) return h("p", { class: "empty" }, "The figures are not known.");
  const answers = hours.reduce((total, each) => total + each.answers, 0);
  const waited = hours.reduce((total, each) => total + each.mean_wait * each.answers, 0);
  const longest = Math.max(...hours.map((each) => each.longest_wait));
  const priced = [{ known_cost: sum(hours, "known_cost"), unpriced_calls: sum(hours, "unpriced_calls") }];
  return figures(
    ["Answers", count(answers), line(hours, "answers")],
    ["Waited on average", answers ? seconds(waited / answers) : "–", line(hours, "mean_wait")],
    ["Waited at most", answers ? seconds(longest) : "–", line(hours, "longest_wait")],
    ["Cost", cost(priced), line(hours, "known_cost")],
  );
}

/** Draw one figure of the hours as columns, the newest at the right. */
function line(hours, name) {
  const most = Math.max(...hours.map((each) => each[name])) || 1;
  const columns = hours.map((each, place) => {
    const height = each[name] ? Math.max(1, (24 * each[name]) / most) : 0;
    return svg("rect", { x: place * 5, y: 24 - height, width: 4, height, class: "bar" });
  });
  return svg("svg", { class: "trend", viewBox: `0 0 ${hours.length * 5} 24`, preserveAspectRatio: "none", "aria-hidden": "true" }, columns);
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
  return lines.reduce((total, each) => total + each[name], 0);
}
