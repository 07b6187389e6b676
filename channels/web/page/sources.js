// The sources of an answer: a numbered list below it, and a number behind each address of one in its text.

import { comparable, finishLink } from "./markdown.js";
import { newId } from "./pending.js";

/** Show *sources* ({ url, title }) below the answer in *line*, in place of those that it had. */
export function showSources(line, sources, words) {
  for (const old of line.querySelectorAll(".sources, .body .source-number")) old.remove();
  if (sources.length === 0) return;
  const section = document.createElement("section");
  section.className = "sources";
  section.setAttribute("aria-label", words.sources);
  const list = document.createElement("ol");
  section.append(list);
  const items = new Map(); // comparable address -> item
  for (const { url, title } of sources) {
    const item = document.createElement("li");
    item.id = `source-${newId()}`;
    const isFile = url.startsWith("chat-file:"); // of this chat, and no address
    const shown = document.createElement(isFile ? "span" : "a");
    shown.dir = "auto";
    item.append(shown);
    list.append(item);
    if (!isFile) shown.href = url;
    shown.textContent = title.trim() || shown.host; // the page's own words: text
    if (isFile) continue;
    finishLink(shown);
    items.set(comparable(url), item);
  }
  for (const shown of line.querySelectorAll(".body a, .body :not(pre) > code")) {
    const item = items.get(comparable(shown.tagName === "A" ? shown.getAttribute("href") : shown.textContent));
    const last = shown.nextSibling?.className === "host" ? shown.nextSibling : shown;
    if (item) last.after(numberOf(item, words));
  }
  line.querySelector(".body").after(section);
}

/** Return a superscript number that leads to *item*. */
function numberOf(item, words) {
  const number = [...item.parentElement.children].indexOf(item) + 1;
  const sup = document.createElement("sup");
  sup.className = "source-number";
  const link = document.createElement("a");
  link.href = `#${item.id}`;
  link.textContent = number;
  link.setAttribute("aria-label", words.source_number.replace("{number}", number));
  link.addEventListener("click", (event) => {
    event.preventDefault(); // the address of the page stays as it is
    item.querySelector("a").focus();
  });
  sup.append(link);
  return sup;
}
