// What happened in a turn: its steps above the answer, as they happen, and the details below it. What is not on the
// screen yet is read from the server when somebody opens it. All texts are shown as text.

import { LOCALE } from "./chat.js";

/** Return a number of seconds as people read it. */
function inSeconds(number) {
  return new Intl.NumberFormat(LOCALE, { style: "unit", unit: "second", maximumFractionDigits: 1 }).format(number);
}

/** Read the details of the turn that answers in *line*; null when the server has none. */
async function read(line, conversation) {
  const address = `turns/${encodeURIComponent(line.dataset.turn ?? "")}?${new URLSearchParams({ conversation })}`;
  const answer = await fetch(address, { cache: "no-store" }).catch(() => null);
  return answer?.ok ? answer.json() : null;
}

/** Show below *line* which model answered, its tokens, cost and time, or hide it again. */
export async function toggleDetails(button, line, conversation, words) {
  const isShown = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(isShown));
  line.querySelector(".facts")?.remove();
  if (!isShown) return;
  const list = document.createElement("dl");
  list.className = "facts";
  list.setAttribute("role", "group");
  list.setAttribute("aria-label", words.details);
  line.append(list);
  const details = await read(line, conversation);
  for (const [name, value] of factsOf(details, words)) {
    const [row, term, text] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = name;
    text.textContent = value;
    text.dir = "auto";
    row.append(term, text);
    list.append(row);
  }
  if (list.childElementCount === 0) list.replaceWith(absent(details ? words.details_gone : words.panel_failed));
  line.scrollIntoView({ block: "nearest" });
}

function factsOf(details, words) {
  if (!details) return [];
  const { models, tokens_in: read, tokens_out: written, tokens_cached: cached, cost, seconds } = details;
  const count = (number) => number.toLocaleString(LOCALE);
  const tokens = words.details_tokens_of.replace("{read}", count(read)).replace("{written}", count(written));
  return [
    [words.model_choice, models.join(", ")],
    [words.details_tokens, models.length ? tokens : ""],
    [words.details_cached, cached ? count(cached) : ""],
    [words.details_cost, cost],
    [words.details_time, seconds ? inSeconds(seconds) : ""],
  ].filter(([, value]) => value);
}

function absent(sentence) {
  const line = document.createElement("p");
  line.className = "facts";
  line.textContent = sentence;
  return line;
}

const SIGNS = { running: "…", done: "✓", asked: "?", unknown: "?" }; // of the states; others have failed

/** Show *count* steps folded above the answer in *line*: *steps*, or those that the server has once it is opened. */
export function showSteps(line, { steps, count }, conversation, words) {
  let box = line.querySelector(":scope > .steps");
  if (!box) {
    box = element("details", "steps");
    box.append(element("summary"), element("ol"));
    line.querySelector(".body").before(box);
    box.addEventListener("toggle", () => box.open && fill(box, line, conversation, words));
  }
  const summary = box.querySelector("summary");
  const running = steps?.findLast((each) => each.state === "running");
  const failed = steps?.filter((each) => !(each.state in SIGNS)).length ?? 0;
  box.classList.toggle("running", Boolean(running));
  summary.dir = "auto";
  summary.textContent = running
    ? running.words
    : [
        count ? words.steps.replace("{count}", count) : words.reasoning,
        failed ? words.steps_failed.replace("{count}", failed) : "",
      ]
        .filter(Boolean)
        .join(" · ");
  if (steps) box.querySelector("ol").replaceChildren(...steps.map((each) => row(each, words)));
}

/** Read what the server has of the turn: reasoning and times are in no live step. */
async function fill(box, line, conversation, words) {
  if (line.classList.contains("streaming") || box.dataset.isRead) return;
  const details = await read(line, conversation);
  box.querySelector(".why")?.remove();
  if (!details) {
    const failed = element("p", "why");
    failed.textContent = words.panel_failed;
    box.append(failed);
    return;
  }
  box.dataset.isRead = "yes";
  box.querySelector("ol").replaceChildren(...details.steps.map((each) => row(each, words)));
  if (!details.reasoning) return;
  const [reasoning, title, text] = [element("details", "reasoning"), element("summary"), element("div")];
  title.textContent = words.reasoning;
  text.textContent = details.reasoning;
  text.dir = "auto";
  reasoning.open = details.steps.length === 0;
  reasoning.append(title, text);
  box.append(reasoning);
}

function row({ words: text, state, seconds, error }, words) {
  const [item, sign, what] = [element("li"), element("span", "sign"), element("span")];
  item.dataset.state = state;
  sign.textContent = SIGNS[state] ?? "✕";
  sign.setAttribute("role", "img");
  sign.setAttribute("aria-label", words[`step_${state}`]);
  sign.title = words[`step_${state}`];
  what.textContent = text;
  what.dir = "auto";
  item.append(sign, what);
  if (seconds) {
    const time = element("small");
    time.textContent = inSeconds(seconds);
    item.append(time);
  }
  if (error) {
    const why = element("p");
    why.textContent = error;
    why.dir = "auto";
    item.append(why);
  }
  return item;
}

function element(tag, name = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  return made;
}
