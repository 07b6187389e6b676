// The search for turns, and the story of one: stages, model calls, tools, what was said, and deliveries.

import { count, figures, h, mark, seconds, section, svg, table, time } from "./elements.js";
import { call } from "./operations.js";

const GOOD = new Set(["answered", "merged"]);
const OUTCOMES = { refused: "wait", expired: "wait", running: "wait", stopped: "wait" };

export async function turns({ visitor, path, go }) {
  const [reference, ...rest] = path.split("?");
  const asked = new URLSearchParams(rest.join("?"));
  return reference ? story(reference, asked.get("chat") ?? "") : search(visitor, asked, go);
}

async function search(visitor, asked, go) {
  const isOwner = visitor.role === "owner";
  const chat = asked.get("chat") ?? (isOwner ? "" : visitor.chats[0]);
  const given = Object.entries({ chat, person: asked.get("person"), since: asked.get("since") ?? "7d" });
  const found = await call("turns find", { limit: 100, ...Object.fromEntries(given.filter(([, value]) => value)) });
  const field = (name, title, value, placeholder) => [
    h("label", { for: `turns-${name}` }, title),
    h("input", { id: `turns-${name}`, name, value, placeholder, maxlength: 300, autocomplete: "off", spellcheck: "false" }),
  ];
  const choice = [
    h("label", { for: "turns-chat" }, "Chat"),
    h("select", { id: "turns-chat", name: "chat" }, visitor.chats.map((each) => h("option", { value: each, selected: each === chat }, each))),
  ];
  const form = h(
    "form",
    {
      class: "row",
      role: "search",
      onsubmit(event) {
        event.preventDefault();
        const fields = new FormData(event.currentTarget);
        const wanted = String(fields.get("reference")).trim();
        fields.delete("reference");
        const query = new URLSearchParams([...fields].filter(([, value]) => value)).toString();
        if (wanted) go(`turns/${wanted}${isOwner ? "" : `?chat=${encodeURIComponent(fields.get("chat"))}`}`);
        else go(`turns/?${query}`);
      },
    },
    field("reference", "Reference", "", "t4x2abcd"),
    isOwner ? field("chat", "Chat", chat, "telegram:42") : choice,
    field("person", "Person", asked.get("person") ?? "", "telegram:42"),
    field("since", "Since", asked.get("since") ?? "7d", "2h, 7d or a date"),
    h("button", { type: "submit", class: "primary" }, "Find"),
  );
  const link = (turn) => `#turns/${turn.reference}${isOwner ? "" : `?chat=${encodeURIComponent(chat)}`}`;
  return [
    form,
    section(
      "Found",
      table(
        "Turns, the newest first",
        [
          ["Reference", (turn) => h("a", { href: link(turn) }, turn.reference)],
          ["When", (turn) => time(turn.at)],
          ["Chat", (turn) => turn.key],
          ["Outcome", (turn) => outcome(turn.outcome, turn.failure)],
          ["Model calls", (turn) => count(turn.calls), "number"],
          ["Tokens", (turn) => count(turn.tokens), "number"],
          ["Cost", (turn) => price(turn.known_cost, turn.unpriced_calls), "number"],
        ],
        found,
        "No turn was found. Look further back, such as 30d.",
      ),
      found.length === 100 ? h("p", { class: "foot" }, "These are the newest 100; narrow the search for others.") : null,
    ),
  ];
}

async function story(reference, chat) {
  const [turn] = await call("turns show", { reference, ...(chat ? { chat } : {}) });
  const tokens = (name) => turn.usage.reduce((sum, each) => sum + each[name], 0);
  const total = turn.stages.reduce((sum, each) => sum + (each.seconds ?? 0), 0);
  const known = turn.usage.filter((each) => each.cost !== null);
  const input = tokens("tokens_in");
  return [
    h("p", {}, h("a", { href: chat ? `#turns/?chat=${encodeURIComponent(chat)}` : "#turns" }, "All turns"), " · ", h("code", {}, turn.turn), " in ", h("code", {}, turn.key)),
    figures(
      ["Outcome", turn.record ? outcome(turn.record.outcome, turn.record.failure) : mark("wait", "running")],
      ["Together", seconds(total)],
      ["Model calls", count(turn.usage.length), `${count(input + tokens("tokens_out"))} tokens, ${input ? Math.round((100 * tokens("tokens_cached")) / input) : 0}% of the input cached`],
      ["Cost", price(known.reduce((sum, each) => sum + each.cost, 0), turn.usage.length - known.length)],
    ),
    section("Stages", timeline(turn.stages, total), stages(turn.stages)),
    section(
      "Model calls",
      table(
        "Model calls, in order",
        [
          ["Ended", (each) => time(each.at)],
          ["Purpose", (each) => each.purpose],
          ["Model", (each) => each.model],
          ["In", (each) => count(each.tokens_in), "number"],
          ["Cached", (each) => count(each.tokens_cached), "number"],
          ["Out", (each) => count(each.tokens_out), "number"],
          ["Cost", (each) => (each.cost === null ? "unknown" : price(each.cost, 0)), "number"],
        ],
        turn.usage,
        "No model was called.",
      ),
    ),
    section(
      "Tools",
      table(
        "Calls of tools",
        [
          ["Tool", (each) => each.name],
          ["Outcome", (each) => mark(each.outcome === "done" ? "good" : "bad", each.rule ? `${each.outcome}: ${each.rule}` : each.outcome)],
          ["Answered", (each) => time(each.at)],
        ],
        turn.tools,
        "No tool was called.",
      ),
    ),
    section("What was said", said(turn)),
    turn.is_readable && turn.said && turn.usage.length ? section("Prompt", prompt(turn, chat)) : null,
    section(
      "Deliveries",
      table(
        "Parts of the answer",
        [
          ["Part", (part) => part.id.slice(turn.turn.length + 1)],
          ["State", (part) => mark(part.state === "sent" ? "good" : part.state === "dead" ? "bad" : "wait", part.state)],
          ["Attempts", (part) => count(part.attempts), "number"],
          ["Receipt", (part) => part.message_id || "–"],
          ["Reason", (part) => part.reason || "–"],
          ["When", (part) => time(part.at)],
        ],
        turn.parts,
        "Nothing was to be sent.",
      ),
    ),
    section(
      "Messages",
      table(
        "Messages that the turn answers",
        [
          ["Number", (row) => String(row.seq)],
          ["State", (row) => row.state],
          ["Accepted", (row) => time(row.accepted_at)],
          ["Ended", (row) => time(row.ended_at)],
          ["Crashes", (row) => count(row.crashes), "number"],
        ],
        turn.inbox,
        "The turn was started by a job.",
      ),
    ),
  ];
}

/** Draw the stages to scale. The table below it has the same figures, so that it is hidden from screen readers. */
function timeline(spans, total) {
  const scale = 1000 / (total || 1);
  let at = 0;
  const bars = spans.map((span, place) => {
    const width = Math.max(2, (span.seconds ?? 0) * scale);
    const bar = svg("rect", { x: Math.min(at, 998), y: place * 18 + 3, width, height: 12, rx: 2, class: span.stages[0] === "queue" ? "waiting" : "bar" });
    at += (span.seconds ?? 0) * scale;
    return bar;
  });
  return svg("svg", { class: "timeline", viewBox: `0 0 1000 ${spans.length * 18}`, preserveAspectRatio: "none", "aria-hidden": "true", height: spans.length * 18 }, bars);
}

function stages(spans) {
  return table(
    "Stages of the turn",
    [
      ["Stage", (span) => span.stages.join(", ")],
      ["Began", (span) => time(span.at)],
      ["Duration", (span) => (span.seconds === null ? "–" : seconds(span.seconds)), "number"],
    ],
    spans,
    "Nothing is stored of its stages.",
  );
}

function said(turn) {
  if (!turn.is_readable) return h("p", { class: "empty" }, "This is somebody's direct chat: only they read it.");
  if (!turn.said) return h("p", { class: "empty" }, "The text is not among the newest turns of its conversation.");
  return messages(turn.said);
}

function messages(lines) {
  return h(
    "ol",
    { class: "said" },
    lines.map((line) =>
      h(
        "li",
        {},
        h("p", {}, h("strong", {}, line.name || line.role), line.name ? ` (${line.role})` : "", " ", line.at ? time(line.at) : ""),
        line.text ? h("pre", {}, line.text) : null,
        line.is_cut ? h("p", { class: "empty" }, "Cut here; the transcript has all of it.") : null,
        line.calls.map((each) => h("pre", {}, `${each.name} ${each.arguments}`)),
      ),
    ),
  );
}

/** Show the first prompt of a turn once it is asked for. Later requests of the turn add the calls and results above. */
function prompt(turn, chat) {
  const place = h("div", {});
  const show = h("button", { type: "button" }, "Show the prompt");
  show.addEventListener("click", async () => {
    show.disabled = true;
    try {
      const found = await call("turns prompt", { reference: turn.reference, ...(chat ? { chat } : {}) });
      place.replaceChildren(h("p", { class: "foot" }, "Rebuilt from the transcript as this release writes it."), messages(found));
    } catch (error) {
      place.replaceChildren(h("p", { class: "empty" }, error.message));
      show.disabled = false;
    }
  });
  return [show, place];
}

function outcome(name, failure) {
  return mark(GOOD.has(name) && !failure ? "good" : (OUTCOMES[name] ?? "bad"), failure ? `${name}: ${failure}` : name);
}

function price(known, unpriced) {
  return unpriced && !known ? "unknown" : `$${known.toFixed(4)}${unpriced ? " and more" : ""}`;
}
