// The machine: what the doctor finds, with the line to paste, and the backups in the home.

import { button, count, h, mark, section, table, time } from "./elements.js";
import { call, CallError } from "./operations.js";

const LEVELS = {
  FAIL: () => mark("bad", "error"),
  WARN: () => mark("wait", "warning"),
  OK: () => mark("good", "good"),
};
const PASTED = /`([^`]+)`|\b((?:PARLOUR_[A-Z0-9_]+)(?:=[^\s,;)]+)?)/g;

export async function doctor({ act }) {
  const shown = h("div", {});
  const check = (offline) => async (event) => {
    const pressed = event.currentTarget;
    pressed.disabled = true;
    shown.replaceChildren(h("p", {}, "Checking …"));
    await act(async () => {
      try {
        const results = await call("doctor", { offline });
        const number = (level, noun) => {
          const total = results.filter((each) => each.level === level).length;
          return `${count(total)} ${noun}${total === 1 ? "" : "s"}`;
        };
        const said = `${number("FAIL", "error")}, ${number("WARN", "warning")}`;
        shown.replaceChildren(section("Findings", h("p", {}, said), findings(results, act)));
        return said;
      } catch (failure) {
        shown.replaceChildren();
        throw failure;
      } finally {
        pressed.disabled = false;
      }
    });
  };
  return [
    h("p", {}, "The checks of ", h("code", {}, "parlour doctor"), ". Nothing is changed by them."),
    h(
      "div",
      { class: "buttons" },
      button("Check everything", check(false), { class: "primary" }),
      button("Check this machine only", check(true)),
    ),
    h("p", { class: "empty" }, "“Everything” also calls the platforms and the search engine, and the model if it has not answered for a day (a few tokens)."),
    shown,
  ];
}

/** Return the table of findings of the doctor or of the status. */
export function findings(found, act) {
  return table(
    "Findings, the errors first",
    [
      ["What", (each) => each.name],
      ["State", (each) => (LEVELS[each.level] ?? (() => each.level))()],
      ["Finding", (each) => words(each.text, each.level === "OK" ? null : act)],
    ],
    found,
    "Nothing was found.",
  );
}

/** Return a finding with what can be pasted as code, each with a button that copies it. */
function words(text, act) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(PASTED)) {
    const line = match[1] ?? match[2];
    parts.push(text.slice(end, match.index), h("code", {}, line));
    if (act && /^parlour |^PARLOUR_/i.test(line)) parts.push(" ", copier(line, act));
    end = match.index + match[0].length;
  }
  return [...parts, text.slice(end)];
}

function copier(line, act) {
  const copy = () =>
    act(async () => {
      try {
        await navigator.clipboard.writeText(line); // absent where the page came over plain HTTP
      } catch {
        throw new CallError("This browser does not let the page copy; select the line and copy it.", 0);
      }
      return `copied: ${line}`;
    });
  return button("Copy", copy, { "aria-label": `Copy ${line}` });
}

export async function backups({ again, act }) {
  const listed = await call("backups list");
  const progress = h("progress", { "aria-label": "Progress of the backup", hidden: true });
  const write = button(
    "Write a backup",
    async () => {
      write.disabled = true;
      progress.hidden = false;
      await act(async () => {
        try {
          const lines = await call("backups create", {}, { onLine: show });
          const made = lines.at(-1);
          return `${made.name}: ${count(made.files)} files, ${size(made.size)}`;
        } finally {
          write.disabled = false;
          progress.hidden = true;
        }
      });
      await again();
    },
    { class: "primary" },
  );
  const show = (line) => {
    if (!line.of) return;
    progress.max = line.of;
    progress.value = line.done;
  };
  const verify = (each) => async (event) => {
    const pressed = event.currentTarget;
    const state = pressed.nextElementSibling;
    pressed.disabled = true;
    state.replaceChildren(mark("wait", "checking"));
    await act(async () => {
      try {
        const [result] = await call("backups verify", { name: each.name });
        state.replaceChildren(mark("good", `${count(result.files)} files are whole`));
        return `${each.name} is whole`;
      } catch (failure) {
        state.replaceChildren(mark("bad", failure.message));
        throw failure;
      } finally {
        pressed.disabled = false;
      }
    });
  };
  return [
    h("p", {}, "A backup is one archive of everything but secrets; the gateway goes on meanwhile. Move it to another machine: one on the same disk is lost with it."),
    h("p", { class: "buttons" }, write, progress),
    table(
      "Backups, the newest first",
      [
        ["Archive", (each) => each.name],
        ["Written", (each) => time(each.at)],
        ["Size", (each) => size(each.size), "number"],
        ["Check", (each) => [button("Verify", verify(each), { "aria-label": `Verify ${each.name}` }), h("span", {})]],
        ["To restore it, stop the gateway and run", (each) => h("code", {}, each.restore)],
      ],
      listed,
      "There is no backup in this home yet.",
    ),
  ];
}

function size(bytes) {
  return bytes < 1_000_000 ? `${count(Math.ceil(bytes / 1000))} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
