// The console: login, the views that the visitor's role may see, and which of them is shown (behind "#").

import { chats } from "./chats.js";
import { h, say } from "./elements.js";
import { CallError, logIn, session } from "./operations.js";
import { logs } from "./logs.js";
import { backups, doctor } from "./machine.js";
import { overview } from "./overview.js";
import { people } from "./people.js";
import { services } from "./services.js";
import { replay } from "./replay.js";
import { setup } from "./setup.js";
import { tasks } from "./tasks.js";
import { turns } from "./turns.js";
import { usage } from "./usage.js";

const OWNER = "owner";
const ADMIN = "admin";
const REFRESH_AFTER = 10_000; // milliseconds; only where nobody is at anything

// name -> title, who sees it, what builds it, and whether it is read again by itself
const VIEWS = {
  overview: { title: "Overview", roles: [OWNER], build: overview, refreshes: true },
  people: { title: "People", roles: [OWNER], build: people },
  turns: { title: "Turns", roles: [OWNER, ADMIN], build: turns },
  tasks: { title: "Tasks", roles: [OWNER, ADMIN], build: tasks },
  chats: { title: "Chats", roles: [OWNER, ADMIN], build: chats },
  services: { title: "Services", roles: [OWNER], build: services },
  usage: { title: "Usage", roles: [OWNER], build: usage },
  replay: { title: "Try a model", roles: [OWNER], build: replay },
  doctor: { title: "Doctor", roles: [OWNER], build: doctor },
  logs: { title: "Log", roles: [OWNER], build: logs },
  setup: { title: "Set-up", roles: [OWNER], build: setup },
  backups: { title: "Backups", roles: [OWNER], build: backups },
};

const by = (id) => document.getElementById(id);
const main = by("view");
let visitor = null;
let shown = 0; // counts the views that were begun, so that a slow one never replaces a later one

async function start() {
  takeCode();
  visitor = await session().catch(() => null);
  if (visitor === null) {
    enter();
    return;
  }
  by("who").textContent = visitor.who;
  const allowed = Object.entries(VIEWS).filter(([, view]) => view.roles.includes(visitor.role));
  by("views").hidden = allowed.length === 0;
  by("views").firstElementChild.replaceChildren(
    ...allowed.map(([name, { title }]) => h("li", {}, h("a", { href: `#${name}` }, title))),
  );
  if (allowed.length === 0) {
    main.replaceChildren(
      h("h2", {}, "Nothing to see here"),
      h("p", {}, "The console is for owners of this bot, and for admins of shared chats who linked their account with /link."),
    );
    return;
  }
  await show();
}

/** Build the view that the address names. */
async function show({ keepsFocus = false } = {}) {
  const [name, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
  const first = Object.keys(VIEWS).find((each) => VIEWS[each].roles.includes(visitor.role));
  if (first === undefined) return;
  const view = VIEWS[name]?.roles.includes(visitor.role) ? VIEWS[name] : VIEWS[first];
  const number = ++shown;
  for (const link of by("views").querySelectorAll("a")) {
    link.toggleAttribute("aria-current", link.hash === `#${Object.keys(VIEWS).find((each) => VIEWS[each] === view)}`);
    if (link.hasAttribute("aria-current")) link.setAttribute("aria-current", "page");
  }
  document.title = `${view.title} – Parlour console`;
  const error = h("p", { class: "error", role: "alert", hidden: true });
  let content;
  try {
    content = await view.build({ visitor, path: rest.join("/"), again: () => show({ keepsFocus: true }), act, go });
  } catch (failure) {
    if (!(failure instanceof CallError)) throw failure;
    if (failure.status === 401) {
      enter();
      return;
    }
    content = [];
    error.textContent = failure.message;
    error.hidden = false;
  }
  if (number !== shown) return;
  const focused = keepsFocus ? labelOf(document.activeElement) : "";
  main.replaceChildren(h("h2", { tabindex: "-1" }, view.title), error, ...content.flat().filter(Boolean));
  main.dataset.view = name;
  if (focused) [...main.querySelectorAll("button, input, a")].find((each) => labelOf(each) === focused)?.focus();
}

/** Do something and say how it went; a line of the gateway is shown where people look. */
async function act(work) {
  by("problem")?.remove();
  try {
    say(await work());
  } catch (failure) {
    if (!(failure instanceof CallError)) throw failure;
    if (failure.status === 401) {
      enter();
      return;
    }
    say(failure.message);
    by("problem")?.remove(); // of another one that failed meanwhile
    const problem = h("p", { class: "error", id: "problem" }, failure.message);
    document.body.insertBefore(problem, main);
    setTimeout(() => problem.remove(), 10_000);
  }
}

/** Turn to another address of the console; the same one is read again. */
function go(address) {
  if (location.hash === `#${address}`) show({ keepsFocus: true });
  else location.hash = address;
}

function labelOf(element) {
  return element?.getAttribute?.("aria-label") || element?.id || "";
}

/** Take the code that a link brought out of the address; entering it is up to people. */
function takeCode() {
  const brought = /^#code=([0-9A-Za-z-]{8,20})$/.exec(location.hash);
  if (location.hash.startsWith("#code=")) history.replaceState(null, "", location.pathname);
  if (brought) by("code").value = brought[1];
}

function enter() {
  if (!by("login").open) by("login").showModal();
  by("code").focus();
}

by("login").addEventListener("cancel", (event) => event.preventDefault());

by("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const line = await logIn(by("code").value);
  by("login-error").textContent = line;
  by("login-error").hidden = line === "";
  if (line !== "") {
    by("code").select();
    return;
  }
  by("code").value = "";
  by("login").close();
  await start();
});

window.addEventListener("hashchange", async () => {
  if (visitor === null || location.hash === "#view") return;
  await show();
  main.querySelector("h2")?.focus();
});

setInterval(() => {
  const view = VIEWS[main.dataset.view || "overview"];
  const isIdle = !main.contains(document.activeElement) && !document.querySelector("dialog[open]");
  if (visitor !== null && view?.refreshes && isIdle && !document.hidden) show();
}, REFRESH_AFTER);

await start();
