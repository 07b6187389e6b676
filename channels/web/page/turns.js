// What happened in a turn, read from the server when somebody wants to see it.

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
