// One's own turns, answered again by another model: both answers side by side, their calls, tokens and cost.

import { ask, count, h, section, table, time } from "./elements.js";
import { call } from "./operations.js";

const DEFAULT_TURNS = 20;
const MOST_TURNS = 500;

export async function replay({ act }) {
  const progress = h("progress", { "aria-label": "Progress of the comparison", hidden: true });
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const sums = h("div", {});
  const turns = h("div", { class: "comparisons" });
  const start = h("button", { type: "submit", class: "primary" }, "Compare");
  const form = h(
    "form",
    {
      class: "row",
      onsubmit(event) {
        event.preventDefault();
        const { model, last } = Object.fromEntries(new FormData(event.currentTarget));
        act(() => compare(model.trim(), Number(last)));
      },
    },
    h("label", { for: "replay-model" }, "Model"),
    h("input", { id: "replay-model", name: "model", required: true, maxlength: 200, placeholder: "openai/gpt-5-mini" }),
    h("label", { for: "replay-last" }, "Newest turns"),
    h("input", { id: "replay-last", name: "last", type: "number", min: 1, max: MOST_TURNS, value: DEFAULT_TURNS, required: true }),
    start,
    stop,
    progress,
  );

  /** Ask with the estimate, and show each turn as it comes. Leaving the view, or *Stop*, ends it. */
  async function compare(model, last) {
    const leaving = new AbortController();
    start.disabled = true;
    try {
      const [plan] = await call("replay plan", { model, last });
      if (!(await ask(`${plan.text} ${plan.question}`, "Compare"))) return "nothing was sent";
      turns.replaceChildren();
      sums.replaceChildren();
      stop.onclick = () => leaving.abort();
      addEventListener("hashchange", stop.onclick, { once: true });
      stop.hidden = progress.hidden = false;
      const bounds = { max_usd: plan.max_usd, max_tokens: plan.max_tokens };
      const lines = await call("replay", { model, last, ...bounds }, { signal: leaving.signal, onLine: show });
      return `${count(lines.at(-1).compared)} turns compared`;
    } catch (failure) {
      if (failure.name !== "AbortError") throw failure;
      return "stopped; the model is sent nothing more";
    } finally {
      start.disabled = false;
      stop.hidden = progress.hidden = true;
    }
  }

  function show(line) {
    if ("turn" in line) turns.append(line.skipped ? skipped(line) : compared(line));
    else if ("compared" in line) sums.replaceChildren(...totals(line));
    else {
      progress.max = line.of;
      progress.value = line.done;
    }
  }

  return [
    h("p", {}, "Your own direct chats, answered again by another model: the newest turns with their prompts, and the recorded results where it calls the same tools. Its provider reads and bills them; you are asked with an estimate first. Nothing is stored or sent to a chat, and no tool runs. ", h("code", {}, "parlour replay --model NAME --last 20"), " does the same for all chats."),
    form,
    sums,
    turns,
  ];
}

function compared(line) {
  const now = line.other;
  return h(
    "article",
    { "aria-label": `Turn ${line.reference}` },
    h("p", { class: "foot" }, time(line.at), " ", h("code", {}, line.reference)),
    h("blockquote", {}, line.question),
    h(
      "div",
      { class: "sides" },
      side(`Recorded, ${line.model || "unknown model"}`, line.answer, line.calls, line.recorded),
      side(now.model, now.text || `(no answer: ${now.failure})`, now.calls, now),
    ),
  );
}

function side(title, text, calls, spent) {
  const run = (each) => ("is_recorded" in each ? (each.is_recorded ? " (with the recorded result)" : " (not run)") : "");
  return h(
    "div",
    {},
    h("h4", {}, title),
    h("p", { class: "answer" }, text),
    calls.length > 0 && h("ul", { class: "calls" }, calls.map((each) => h("li", {}, h("code", {}, `${each.name} ${each.arguments}`), run(each)))),
    h("p", { class: "foot" }, spentText(spent)),
  );
}

function skipped(line) {
  return h("article", { "aria-label": `Turn ${line.reference}` }, h("p", { class: "foot" }, time(line.at), " ", h("code", {}, line.reference), ` not replayed: ${line.skipped}`));
}

function totals(line) {
  return [
    section(
      "Sums",
      h("p", {}, `${count(line.compared)} of ${count(line.of)} turns compared; ${count(line.skipped)} could not be replayed, and ${count(line.failed)} got no answer.`),
      table(
        "Tokens and cost",
        [
          ["Answers", (each) => each.name],
          ["Tokens in", (each) => count(each.tokens.input), "number"],
          ["From the cache", (each) => cachedShare(each.tokens), "number"],
          ["Tokens out", (each) => count(each.tokens.output), "number"],
          ["Cost", (each) => dollars(each.cost), "number"],
        ],
        [
          { name: "Recorded", ...line.recorded },
          { name: line.model, ...line.other },
        ],
        "",
      ),
      line.stopped ? h("p", { class: "error" }, `Stopped: ${line.stopped}.`) : null,
    ),
  ];
}

function spentText({ tokens, cost }) {
  return `${count(tokens.input)} tokens in (${cachedShare(tokens)} from the cache), ${count(tokens.output)} out, ${dollars(cost)}`;
}

const cachedShare = ({ cached, input }) => `${input ? Math.floor((100 * cached) / input) : 0}%`;
const dollars = (cost) => (cost === null ? "unknown cost" : `$${cost.toFixed(4)}`);
