// The set-up assistant: a model and platforms, tried by real calls before they are saved.

import { button, h, mark, section } from "./elements.js";
import { call, CallError, restart } from "./operations.js";

const LOOK_AGAIN = 1_000; // milliseconds
const MOST_LOOKS = 60;

export async function setup({ act, again }) {
  const [status] = await call("setup status");

  /** Try *answers*, save them, and start the gateway again with them. */
  const save = (operation, answersOf, state) => async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const buttons = form.querySelectorAll("button");
    const sent = answersOf(form);
    const tell = (...content) => state.replaceChildren(...content);
    for (const each of buttons) each.disabled = true;
    tell(mark("wait", "trying it …"));
    try {
      const [result] = await call(operation, sent);
      for (const secret of form.querySelectorAll("[type=password]")) secret.value = "";
      const said = result.findings.map((each) => h("p", {}, mark("good", each)));
      if (!status.can_restart) {
        tell(...said, h("p", {}, "Saved. Restart the gateway to use it: it was started by another program."));
        return;
      }
      tell(...said, h("p", {}, mark("wait", "Saved. The gateway starts again with it …")));
      await restart(status.run);
      await again();
      const done = document.getElementById("setup-done");
      done.replaceChildren(...said, h("p", {}, mark("good", "The gateway runs with it.")));
      done.scrollIntoView({ block: "center" });
    } catch (failure) {
      if (!(failure instanceof CallError)) throw failure;
      tell(h("p", { class: "error", role: "alert" }, failure.message));
    } finally {
      for (const each of buttons) each.disabled = false;
    }
  };

  return [
    h("div", { id: "setup-done", role: "status" }),
    section("The model", model(status, save)),
    ...status.platforms.map((each) => section(each.title, platform(each, save))),
    h("p", { class: "foot" }, "What you enter is tried by a real call first, and saved only if that works: settings in the settings file, keys and tokens in files of their own that no page shows again."),
    status.can_restart ? button("Restart the gateway", () => act(async () => (await restart(status.run), await again(), "The gateway runs again.")), {}) : null,
  ];
}

function model(status, save) {
  const state = h("div", {});
  const answers = (form) => Object.fromEntries(new FormData(form));
  return [
    h("p", {}, status.model ? [mark("good", "answers: "), h("code", {}, status.model)] : mark("wait", "none yet; the built-in offline model answers, from memory only")),
    status.lacks ? h("p", {}, mark("wait", `its server refuses some things, which are left out: ${status.lacks}`)) : null,
    h("p", {}, h("a", { href: "./#connect" }, "Connect a model"), " finds servers on this machine and lists the models of a provider. Or type the names here:"),
    h(
      "form",
      { class: "setup", "aria-label": "The model", onsubmit: save("setup model", answers, state) },
      field("model", "Model", { value: status.model, required: true, placeholder: "openai/gpt-5" }, "As litellm names it: openai/gpt-5, anthropic/claude-sonnet-4-5; with an address, the name that your server lists."),
      field("api_base", "Address of your own model server", { value: status.api_base, placeholder: "http://127.0.0.1:11434/v1" }, "Only if you run one."),
      field("api_key", "Key", { type: "password", autocomplete: "off" }, status.has_key ? "One is saved; leave it empty to keep it." : "From the provider's console; a server of your own may need none."),
      h("button", { type: "submit", class: "primary" }, "Try and save"),
    ),
    state,
  ];
}

function platform(each, save) {
  const state = h("div", {});
  const answers = (form) => ({ platform: each.name, answers: Object.fromEntries(new FormData(form)) });
  return [
    ...each.channels.map(connection),
    h("ol", {}, each.steps.map((step) => h("li", {}, step))),
    h(
      "form",
      { class: "setup", "aria-label": each.title, onsubmit: save("setup platform", answers, state) },
      each.questions.map((asked) =>
        field(asked.setting, asked.text, { type: asked.is_secret ? "password" : "text", autocomplete: "off", required: !asked.is_optional, placeholder: asked.default, value: asked.value }, asked.help, each.name),
      ),
      h("button", { type: "submit", class: "primary" }, each.channels.length ? "Try and replace" : "Try and connect"),
    ),
    state,
  ];
}

/** Return the line about a channel; one that is not connected is looked at again for a while, as after a start. */
function connection(channel) {
  const line = h("p", {}, channel.is_ready ? connected(channel.name) : mark("wait", `${channel.name} is not connected yet`));
  if (!channel.is_ready) watch(line, channel.name);
  return line;
}

const connected = (name) => mark("good", `${name} is connected`);

async function watch(line, name) {
  for (let looks = 0; looks < MOST_LOOKS; looks += 1) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN));
    if (!line.isConnected) return; // another view is shown
    try {
      const [status] = await call("setup status");
      if (status.platforms.some((each) => each.channels.some((channel) => channel.name === name && channel.is_ready))) {
        line.replaceChildren(connected(name));
        return;
      }
    } catch (failure) {
      if (!(failure instanceof CallError) || failure.status === 401) return;
    }
  }
}

function field(name, text, attributes, help, group = "llm") {
  const id = `setup-${group}-${name}`;
  return [
    h("label", { for: id }, text),
    h("input", { id, name, maxlength: 4000, spellcheck: "false", "aria-describedby": help ? `${id}-help` : null, ...attributes }),
    help ? h("small", { id: `${id}-help` }, help) : null,
  ];
}
