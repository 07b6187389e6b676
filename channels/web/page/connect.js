// The card "Connect a model", for owners: choose a server, choose one of its models. The operations are the console's.
// Names of models come from servers that are not trusted: they are shown as text.

import { isCardLink } from "./markdown.js";

const FILTERED_FROM = 8; // as many models are seen at a glance
const MOST_SHOWN = 40; // at once; the field finds the others
const NO_KEY = "none"; // the saved key is for another address, and a server of one's own needs none

export class ModelCard {
  constructor(words, onConnected) {
    this.words = words;
    this.onConnected = onConnected; // called when the gateway runs with another model
    this.isOwner = false;
    this.shows = 0; // counts the steps, so that a slow answer never replaces a later step
    for (const name of ["", "-title", "-state", "-trouble", "-step", "-back", "-close", "-open"]) {
      this[name.slice(1) || "dialog"] = document.getElementById(`connect${name}`);
    }
    this.banner = document.getElementById("no-model");
    this.banner.querySelector("button").addEventListener("click", () => this.show());
    this.open.addEventListener("click", () => {
      document.getElementById("settings").close();
      this.show();
    });
    this.close.addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => {
      // The line that opened the card is gone once a model is connected: the focus must not go with it.
      if (this.banner.hidden) document.getElementById("text").focus();
    });
    this.back.addEventListener("click", () => this.showServers());
    addEventListener("hashchange", () => this.showForAddress());
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href]");
      if (!link || !isCardLink(link)) return;
      event.preventDefault(); // the address names the conversation
      if (this.isOwner) this.show();
    });
  }

  /** Take what the server says about the visitor; only owners see the card and the way to the console. */
  allow({ is_owner: isOwner = false, needs_model: needsModel = false }) {
    this.isOwner = isOwner;
    this.banner.hidden = !needsModel;
    this.open.hidden = !isOwner;
    document.getElementById("console-link").hidden = !isOwner;
    if (!isOwner) this.dialog.close();
    this.showForAddress();
  }

  /** Open the card if the page's address ends in #connect, as in links of the bot. */
  showForAddress() {
    if (!this.isOwner || location.hash !== "#connect") return;
    history.replaceState(null, "", location.pathname + location.search);
    this.show();
  }

  show() {
    if (this.dialog.open) return;
    this.dialog.showModal();
    if (!this.isBusy) this.showServers();
  }

  /** Begin a step; it shows nothing any more once another one has begun. */
  begin(state, step = [], { hasBack = true } = {}) {
    this.back.hidden = !hasBack;
    this.tell(state);
    this.step.replaceChildren(...step);
    const number = ++this.shows;
    return () => number === this.shows;
  }

  tell(state, trouble = []) {
    this.state.textContent = state;
    this.trouble.replaceChildren(...trouble);
  }

  async call(name, sent) {
    // Loaded with the first use of the card: the console's own way to its operations.
    this.operations ??= await import("../../console/assets/operations.js");
    return this.operations.call(name, sent);
  }

  async showServers() {
    const { words } = this;
    const isCurrent = this.begin(words.connect_looking, [], { hasBack: false });
    this.title.focus();
    let servers;
    try {
      [this.status] = await this.call("setup status");
      servers = await this.call("setup servers");
    } catch (error) {
      if (isCurrent()) this.fail(error);
      return;
    }
    if (!isCurrent()) return;
    const local = servers.filter((each) => !each.provider);
    const again = this.button(words.connect_again, () => this.showServers(), "quiet");
    this.tell("");
    this.step.replaceChildren(
      paragraph(words.connect_more),
      heading(words.connect_here),
      ...(local.length ? [] : [paragraph(words.connect_none_here)]),
      row(...local.map((each) => this.server(each, () => this.showModels(each, each.models))), again),
      heading(words.connect_providers),
      row(...servers.filter((each) => each.provider).map((each) => this.server(each, () => this.askKey(each)))),
      heading(words.connect_elsewhere),
      this.addressForm(),
    );
    this.step.querySelector("button").focus();
  }

  server(each, action) {
    const button = this.button(each.title, action, "choice");
    if (each.api_base) button.append(" ", element("small", new URL(each.api_base).host));
    return button;
  }

  addressForm() {
    const { words } = this;
    const address = field("connect-address", "text", { required: true, placeholder: "http://192.168.1.5:8000/v1" });
    const key = field("connect-address-key", "password");
    const submit = this.button(words.connect_list, () => {}, "quiet");
    submit.type = "submit";
    return form(
      [label(words.connect_address, address), label(words.connect_key_optional, key), submit],
      () => this.listModels({ title: address.value.trim() }, { api_base: address.value.trim(), api_key: key.value }),
    );
  }

  askKey(server) {
    const { words } = this;
    this.begin(server.title);
    const key = field("connect-key", "password", { required: !server.has_key });
    const submit = this.button(words.connect_list, () => {}, "primary");
    submit.type = "submit";
    const link = element("a", words.connect_key_page.replace("{server}", server.title));
    Object.assign(link, { href: server.keys, target: "_blank", rel: "noreferrer noopener" });
    const page = paragraph("");
    page.append(link);
    this.step.append(
      form([label(words.connect_key, key), submit], () =>
        this.listModels(server, { provider: server.provider, api_key: key.value }),
      ),
      ...(server.has_key ? [paragraph(words.connect_key_saved)] : []),
      page,
    );
    key.focus();
  }

  /** List the models of *server*; what was typed stays until that has worked. */
  async listModels(server, sent) {
    const { words } = this;
    const number = ++this.shows;
    const isCurrent = () => number === this.shows;
    this.tell(words.connect_listing.replace("{server}", () => server.title));
    this.enable(false);
    try {
      const [found] = await this.call("setup models", sent);
      if (!isCurrent()) return;
      const hasKey = sent.api_key || server.has_key;
      const isOffline = found.problem === "unreachable" && server.provider;
      const problem = isOffline ? "offline" : found.problem === "key" && !hasKey ? "no_key" : found.problem;
      if (problem && problem !== "no_list") this.tell("", [this.problem(problem, server)]);
      else this.showModels({ ...server, api_base: found.api_base, api_key: sent.api_key }, found.models, found.problem);
    } catch (error) {
      if (isCurrent()) this.fail(error);
    } finally {
      this.enable(true);
    }
  }

  showModels(server, models, reason = "") {
    const { words } = this;
    const problem = reason || (models.length ? "" : "empty");
    this.begin(problem ? "" : words.connect_choose.replace("{server}", () => server.title));
    if (problem) this.tell("", [this.problem(problem, server)]);
    if (problem === "empty") {
      this.step.append(this.button(words.connect_again, () => this.showServers(), "quiet"));
      return;
    }
    const list = document.createElement("ul");
    list.className = "models";
    const draw = (sought = "") => {
      const found = models.filter((name) => name.toLowerCase().includes(sought.toLowerCase())).slice(0, MOST_SHOWN);
      list.replaceChildren(
        ...found.map((name) => {
          const entry = document.createElement("li");
          entry.append(this.button(shownName(name, server), () => this.use(server, name), "choice"));
          return entry;
        }),
      );
    };
    draw();
    if (models.length > FILTERED_FROM || problem) {
      const name = field("connect-name", "text", { required: true });
      const submit = this.button(words.connect_use, () => {}, "quiet");
      submit.type = "submit";
      name.addEventListener("input", () => draw(name.value.trim()));
      this.step.append(form([label(words.connect_find, name), submit], () => this.use(server, fullName(name.value.trim(), server))));
      this.step.append(list);
      name.focus();
      return;
    }
    this.step.append(list);
    list.querySelector("button").focus();
  }

  problem(name, server) {
    return this.words[`connect_problem_${name}`].replace("{server}", () => server.title);
  }

  /** Try *model*, save it, and restart the gateway with it. */
  async use(server, model) {
    const { words } = this;
    const filled = (word) => word.replace("{model}", () => model);
    this.enable(false);
    this.back.hidden = true;
    this.isBusy = true;
    this.tell([filled(words.connect_trying), ...(server.provider ? [] : [words.connect_loading])].join(" "));
    const key = server.api_key || (server.provider || !this.status.has_key || server.api_base === this.status.api_base ? "" : NO_KEY);
    try {
      const [tried] = await this.call("setup model", { model, api_base: server.api_base ?? "", api_key: key });
      this.step.replaceChildren();
      if (!this.status.can_restart) {
        this.tell(filled(words.connect_by_hand), warnings(tried));
        return;
      }
      this.tell(filled(words.connect_restarting), warnings(tried));
      await this.operations.restart(this.status.run);
      this.tell(filled(words.connect_done), warnings(tried));
      this.onConnected();
    } catch (error) {
      this.back.hidden = false;
      this.fail(error);
    } finally {
      this.isBusy = false;
      this.enable(true);
      if (this.dialog.open && this.step.childElementCount === 0) this.close.focus();
    }
  }

  /** Say what went wrong: in the page's language, with the gateway's own line, which is English. */
  fail(error) {
    if (!this.operations || !(error instanceof this.operations.CallError) || error.status === 0) {
      this.tell("", [this.words.connect_lost]);
      return;
    }
    this.tell("", [this.words.connect_failed, " ", english(error.message)]);
  }

  /** Let the step be used or not; the focus comes back to where it was. */
  enable(isOn) {
    if (!isOn) this.focused = document.activeElement;
    for (const each of this.step.querySelectorAll("button, input")) each.disabled = !isOn;
    if (isOn && this.dialog.open && this.dialog.contains(this.focused)) this.focused.focus();
  }

  button(text, action, name) {
    const button = element("button", text);
    button.type = "button";
    button.className = name;
    button.addEventListener("click", action);
    return button;
  }
}

/** A provider's models are named behind its own name, which the card does not repeat. */
function shownName(name, { provider }) {
  return provider ? name.slice(provider.length + 1) : name;
}

function fullName(typed, { provider }) {
  return provider && !typed.startsWith(`${provider}/`) ? `${provider}/${typed}` : typed;
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

/** A line of the gateway itself. */
function english(text) {
  return Object.assign(element("span", text), { lang: "en" });
}

/** What a model that answered lacks. */
function warnings({ warnings: lines }) {
  return lines.map(english);
}

function heading(text) {
  return element("h3", text);
}

function paragraph(text) {
  return element("p", text);
}

function row(...buttons) {
  const made = document.createElement("div");
  made.className = "row";
  made.append(...buttons);
  return made;
}

function field(id, type, more = {}) {
  const made = document.createElement("input");
  return Object.assign(made, { id, type, maxLength: 4000, spellcheck: false, autocomplete: "off", ...more });
}

function label(text, input) {
  const made = element("label", text);
  made.append(input);
  return made;
}

function form(parts, action) {
  const made = document.createElement("form");
  made.append(...parts);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
  return made;
}
