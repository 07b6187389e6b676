// Chats: the settings in force with their origins, and the memory of shared ones with its versions.

import { button, count, h, section, table, time } from "./elements.js";
import { call, CallError } from "./operations.js";

const ORIGINS = { everywhere: "the whole installation", block: "its channel", chosen: "chosen in the chat" };

export async function chats({ visitor, path, act }) {
  const [query, name] = [new URLSearchParams(path.replace(/^\?/, "")), (each) => `#chats/?${new URLSearchParams(each)}`];
  const chat = query.get("chat");
  if (chat) return query.get("sha") ? version(chat, query.get("sha"), name) : one(chat, name, visitor.role === "owner" ? act : null);
  const listed = visitor.role === "owner" ? await call("chats list") : visitor.chats.map((each) => ({ chat: each, is_shared: true }));
  return [
    table(
      "Chats, the most recently used first",
      [
        ["Chat", (each) => h("a", { href: name({ chat: each.chat }) }, each.chat)],
        ["Kind", (each) => (each.is_shared ? "shared" : "direct")],
        ["Sessions", (each) => (each.sessions === undefined ? "–" : count(each.sessions)), "number"],
        ["Turns", (each) => h("a", { href: `#turns/?${new URLSearchParams({ chat: each.chat })}`, "aria-label": `Turns of ${each.chat}` }, "Turns")],
      ],
      listed,
      "Nobody has written yet.",
    ),
  ];
}

async function one(chat, name, act) {
  const [settings, memory] = await Promise.all([call("chats settings", { chat }), remembered(chat)]);
  const form = act ? change(chat, settings, act) : null;
  return [
    h("p", {}, h("a", { href: "#chats" }, "All chats"), " · ", h("code", {}, chat)),
    section(
      "Settings in force",
      form?.elements ?? h("p", {}, "An owner changes them here, or puts the line into ", h("code", {}, "parlour.yaml"), "."),
      table(
        "Settings in force",
        [
          ["Setting", (each) => each.name],
          ["Value", (each) => each.value],
          ["From", (each) => ORIGINS[each.origin] ?? `chats."${each.origin}"`],
          ["Line for this chat", (each) => h("code", {}, each.paste)],
          ...(form ? [["Change", (each) => (each.origin === chat ? button("Inherit", () => form.remove(each.name), { "aria-label": `Inherit ${each.name}` }) : null)]] : []),
        ],
        settings,
        "This chat has no settings.",
      ),
    ),
    section("Memory", memory.error ? h("p", { class: "empty" }, memory.error) : documents(memory.documents)),
    memory.changes &&
      section(
        "Versions",
        table(
          "Changes of the memory, the newest first",
          [
            ["Change", (each) => h("a", { href: name({ chat, sha: each.sha }) }, each.sha)],
            ["When", (each) => time(each.at)],
            ["Why", (each) => each.why],
            ["By", (each) => each.by || "–"],
            ["First line", (each) => each.first || "–"],
          ],
          memory.changes,
          "Nothing has changed yet.",
        ),
      ),
  ].filter(Boolean);
}

/** Return a form that shows the lines of the settings file before it saves them, and what takes a setting away. */
function change(chat, settings, act) {
  const names = settings.flatMap((each) => (each.name === "tools" ? ["tools.allow", "tools.deny"] : each.name));
  const name = h("input", { id: "change-name", list: "change-names", required: true, maxlength: 60, autocomplete: "off", placeholder: "group_policy" });
  const value = h("input", { id: "change-value", maxlength: 4000, autocomplete: "off", placeholder: "empty: inherited" });
  const result = h("div", { role: "status" });
  const given = () => ({ chat, name: name.value.trim(), value: value.value.trim() });
  const preview = async () => {
    result.replaceChildren();
    const [shown] = await call("chats preview", given());
    const sent = given();
    const save = button("Save these lines", () => act(async () => {
      await call("chats change", sent);
      result.replaceChildren(h("p", {}, "Saved. It is used after a restart: ", h("a", { href: "#setup" }, "Set-up"), " has a button."));
      return "saved";
    }), { class: "primary" });
    const lines = shown.lines.split("\n").map((line) => h("span", { class: line.startsWith("+") ? "added" : "removed" }, `${line}\n`));
    result.replaceChildren(...[
      shown.lines ? h("p", {}, "This changes ", h("code", {}, shown.file), ":") : h("p", {}, "The file says so already."),
      shown.lines ? h("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": "Lines of the settings file" }, lines) : null,
      shown.lines ? save : null,
    ].filter(Boolean));
    return "preview";
  };
  const remove = async (setting) => {
    [name.value, value.value] = [setting === "tools" ? "tools.deny" : setting, ""];
    await act(preview);
    (result.querySelector("button") ?? name).focus();
  };
  const elements = [
    h(
      "form",
      { class: "row", "aria-label": "Change a setting of this chat", onsubmit: (event) => (event.preventDefault(), act(preview)) },
      h("label", { for: "change-name" }, "Setting"),
      name,
      h("datalist", { id: "change-names" }, names.map((each) => h("option", { value: each }))),
      h("label", { for: "change-value" }, "Value"),
      value,
      h("button", { type: "submit" }, "Preview"),
    ),
    result,
  ];
  return { elements, remove };
}

/** Return the documents and changes, or the line that says why there are none to see. */
async function remembered(chat) {
  try {
    const [found, changes] = await Promise.all([call("memory show", { chat }), call("memory log", { chat, limit: 50 })]);
    return { documents: found, changes };
  } catch (failure) {
    if (failure instanceof CallError && failure.status === 400) return { error: failure.message };
    throw failure;
  }
}

function documents(found) {
  if (found.length === 0) return h("p", { class: "empty" }, "Nothing is remembered yet.");
  return found.map((each) => [h("h4", {}, each.document), h("pre", { tabindex: "0", role: "region", "aria-label": each.document }, each.text)]);
}

async function version(chat, sha, name) {
  const [change] = await call("memory diff", { chat, sha });
  const kind = (line) => (/^\+(?!\+\+)/.test(line) ? "added" : /^-(?!--)/.test(line) ? "removed" : null);
  return [
    h("p", {}, h("a", { href: name({ chat }) }, chat), " · ", h("code", {}, change.sha), " · ", time(change.at), ` · ${change.why}`),
    h("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": "Difference" }, change.diff.split("\n").map((line) => h("span", { class: kind(line) }, `${line}\n`))),
  ];
}
