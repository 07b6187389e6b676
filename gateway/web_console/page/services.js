// MCP servers: which are pinned, and which of their tools the model may use.

import { ask, button, count, h, mark, section, table, time } from "./elements.js";
import { call } from "./operations.js";

const USES = {
  read: () => mark("good", "reads"),
  act: () => mark("good", "acts, and asks"),
  off: () => mark("wait", "off"),
  changed: () => mark("bad", "off: changed since it was pinned"),
};

export async function services({ again, act, path }) {
  if (path) return service(path, { again, act });
  const [servers, logins] = [await call("mcp list"), await call("mcp logins")];
  const signOut = (each) => async () => {
    await act(async () => {
      await call("mcp logout", { name: each.server, person: each.account });
      return `${each.account} is signed out of ${each.server}`;
    });
    await again();
  };
  return [
    section("Pin a server", addForm({ again, act })),
    section(
      "Servers",
      table(
        "Servers that are pinned",
        [
          ["Name", (each) => h("a", { href: `#services/${each.server}` }, each.server)],
          ["Address", (each) => h("code", {}, each.url)],
          ["Tools allowed", (each) => `${count(each.allowed)} of ${count(each.tools)}`, "number"],
          ["People sign in at", (each) => each.issuer || "–"],
          ["Pinned", (each) => time(each.pinned_at)],
        ],
        servers,
        "No server is pinned.",
      ),
    ),
    section(
      "Logins",
      h("p", {}, "People sign in with ", h("code", {}, "/login NAME"), " in a chat. How they do is set at the machine: ", h("code", {}, "parlour mcp login NAME"), "."),
      table(
        "People who have signed in to servers",
        [
          ["Server", (each) => each.server],
          ["Account", (each) => h("code", {}, each.account)],
          ["Login", (each) => (each.is_over ? mark("wait", "has to sign in again") : mark("good", "signed in"))],
          ["Since", (each) => time(each.at)],
          ["", (each) => button("Sign out", signOut(each), { "aria-label": `Sign out: ${each.account}, ${each.server}` })],
        ],
        logins,
        "Nobody has signed in.",
      ),
    ),
  ];
}

function addForm({ again, act }) {
  const name = h("input", { id: "server-name", required: true, maxlength: 24, pattern: "[a-z][a-z0-9\\-]*", autocomplete: "off", placeholder: "tracker" });
  const url = h("input", { id: "server-url", type: "url", required: true, maxlength: 2000, autocomplete: "off", placeholder: "https://example.com/mcp" });
  const add = async (event) => {
    event.preventDefault();
    await act(async () => {
      await call("mcp add", { name: name.value, url: url.value.trim() });
      location.hash = `services/${name.value}`;
      return `${name.value} is pinned; none of its tools may be used yet`;
    });
    await again();
  };
  return [
    h("form", { class: "row", onsubmit: add }, h("label", { for: "server-name" }, "Name"), name, h("label", { for: "server-url" }, "Address"), url, h("button", { type: "submit", class: "primary" }, "Pin")),
    h("p", {}, "A server on your own network is pinned at the machine: ", h("code", {}, "parlour mcp add NAME URL --private"), "."),
  ];
}

/** Return the page of one server: what the model would read of each tool, and what it may do with it. */
async function service(name, { again, act }) {
  const tools = await call("mcp show", { name });
  const change = (tool, use) => async () => {
    await act(async () => {
      await call("mcp allow", { name, tools: tool, as: use });
      return `${tool}: ${use}`;
    });
    await again();
  };
  const buttons = (each) =>
    [["read", "Let it read"], ["act", "Let it act"], ["off", "Off"]]
      .filter(([use]) => use !== each.use)
      .map(([use, title]) => [button(title, change(each.tool, use), { "aria-label": `${title}: ${each.tool}` }), " "]);
  return [
    h("p", {}, h("a", { href: "#services" }, "All servers"), " · ", h("code", {}, name)),
    section(
      "Tools",
      h("p", {}, "The model reads these texts as they are. A tool that reads runs without a question; one that acts asks the person each time."),
      table(
        "Tools as they were pinned",
        [
          ["Tool", (each) => h("code", {}, each.tool)],
          ["Text and parameters, as the model reads them", (each) => h("pre", {}, each.shown)],
          ["Use", (each) => (USES[each.use] ?? (() => each.use))()],
          ["Change", buttons],
        ],
        tools,
        "The server has no tools.",
      ),
    ),
    section("Compare and forget", h("p", {}, button("Compare with the server", compare(name, { again, act })), " ", button("Forget", forget(name, { act })))),
  ];
}

function compare(name, { again, act }) {
  return async () => {
    await act(async () => {
      const differences = await call("mcp review", { name });
      if (differences.length === 0) return "nothing has changed since it was pinned";
      const said = differences.map((each) => `${each.tool} is ${each.what}`).join(", ");
      if (!(await ask(`${said}. Pin what the server has now? New and changed tools are off until you allow them.`, "Pin"))) return said;
      await call("mcp review", { name, accept: true });
      return "pinned anew";
    });
    await again();
  };
}

function forget(name, { act }) {
  return async () => {
    if (!(await ask(`Forget ${name}? Its tools are gone from the next message on.`, "Forget"))) return;
    await act(async () => {
      await call("mcp remove", { name });
      location.hash = "services";
      return `${name} is forgotten`;
    });
  };
}
