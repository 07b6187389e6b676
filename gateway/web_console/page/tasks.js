// Background tasks and scheduled requests: who asked for what, how far it is, what it has spent, and how each run ended.

import { ask, button, count, h, mark, section, table, time } from "./elements.js";
import { call } from "./operations.js";

const KINDS = { task: "background task", request: "scheduled request", reminder: "reminder" };
const GOOD = new Set(["done", "answered", "silent", "merged"]);
const BAD = new Set(["failed", "exhausted", "capped", "revoked", "dead"]);
const LONGEST_NAME = 60; // characters of what was asked for, in a question

export async function tasks({ visitor, path, again, act }) {
  const isOwner = visitor.role === "owner";
  const [id, ...rest] = path.split("?");
  const chat = new URLSearchParams(rest.join("?")).get("chat") ?? (isOwner ? "" : visitor.chats[0]);
  const within = chat ? { chat } : {};
  const address = (each) => `#tasks/${each}${chat ? `?${new URLSearchParams(within)}` : ""}`;
  if (id) return runs(id, within, address(""));
  const found = await call("tasks list", within);
  const stop = (each) => async () => {
    const what = each.text === null ? each.id : `“${each.text.slice(0, LONGEST_NAME)}”`;
    if (!(await ask(`Stop the task ${what} of ${each.who}? What it has found out is lost, and its chat is told.`, "Stop"))) return;
    await act(async () => {
      await call("tasks stop", { id: each.id, ...within });
      return `the task of ${each.who} is stopped`;
    });
    await again();
  };
  const change = (each) => {
    if (each.kind !== "task") return h("a", { href: address(each.id), "aria-label": `Runs of ${each.id}` }, "Runs");
    return each.is_over ? null : button("Stop", stop(each), { "aria-label": `Stop ${each.id}` });
  };
  return [
    isOwner ? null : chats(visitor, chat),
    section(
      "Tasks and scheduled requests",
      h("p", {}, "Tasks that have ended are listed for a week. What people asked for in their direct chats is not shown."),
      table(
        "Tasks, those that run first, and scheduled requests, the next one first",
        [
          ["Who", (each) => h("code", {}, each.who)],
          ["What", (each) => each.text ?? "in a direct chat"],
          ["Kind", (each) => KINDS[each.kind]],
          ["Chat", (each) => each.chat],
          ["State", state],
          ["Since", (each) => time(each.started_at ?? each.at)],
          ["Steps", (each) => (each.kind === "task" ? count(each.steps) : "–"), "number"],
          ["Spent", (each) => (each.kind === "task" ? spent(each) : "–"), "number"],
          ["Change", change],
        ],
        found,
        "Nothing runs, and nothing is scheduled.",
      ),
    ),
  ].filter(Boolean);
}

function chats(visitor, chat) {
  const go = (event) => (location.hash = `tasks/?${new URLSearchParams({ chat: event.currentTarget.value })}`);
  return h(
    "form",
    { class: "row", onsubmit: (event) => event.preventDefault() },
    h("label", { for: "tasks-chat" }, "Chat"),
    h("select", { id: "tasks-chat", onchange: go }, visitor.chats.map((each) => h("option", { value: each, selected: each === chat }, each))),
  );
}

function state(each) {
  if (each.kind !== "task") return each.due ? ["next ", time(each.due), each.repeat ? ` (${each.repeat})` : ""] : mark("bad", each.state);
  return outcome(each.state);
}

function outcome(word) {
  return mark(GOOD.has(word) ? "good" : BAD.has(word) ? "bad" : "wait", word);
}

function spent(each) {
  return `${count(each.tokens)} tokens, $${each.known_cost.toFixed(4)}${each.unpriced_calls ? ` and ${count(each.unpriced_calls)} calls of unknown cost` : ""}`;
}

/** Return the page of one scheduled request: its runs. */
async function runs(id, within, back) {
  const found = await call("tasks runs", { id, ...within });
  const turn = (each) => `#turns/${each.reference}${within.chat ? `?${new URLSearchParams(within)}` : ""}`;
  return [
    h("p", {}, h("a", { href: back }, "All tasks"), " · ", h("code", {}, id)),
    section(
      "Runs",
      table(
        "Runs in the last 30 days, the newest first",
        [
          ["When", (each) => time(each.at)],
          ["Outcome", (each) => outcome(each.state)],
          ["Spent", (each) => spent(each), "number"],
          ["Turn", (each) => (each.reference ? h("a", { href: turn(each) }, each.reference) : "–")],
        ],
        found,
        "It has not run in the last 30 days.",
      ),
    ),
  ];
}
