// Settings: theme and text size are of this browser; the language is the chat's, and changed by its command.

const NAME = `parlour.look.${new URL(".", document.baseURI).pathname}`;
const DEFAULTS = { theme: "system", size: "normal" };
const root = document.documentElement;

/** Apply what was chosen here before, and let it be changed; *say* is called with the command for another language. */
export function listenForSettings(words, say) {
  const look = { ...DEFAULTS, ...stored() };
  apply(look);
  const dialog = document.getElementById("settings");
  const offerServices = () =>
    listServices(words, (command) => {
      dialog.close(); // its answer stands in the conversation
      say(command);
    });
  document.getElementById("settings-open").addEventListener("click", () => {
    dialog.showModal();
    offerModels();
    offerServices();
  });
  document.getElementById("settings-close").addEventListener("click", () => dialog.close());
  for (const name of Object.keys(DEFAULTS)) {
    const choice = document.getElementById(`settings-${name}`);
    choice.value = look[name];
    choice.addEventListener("change", () => {
      look[name] = choice.value;
      apply(look);
      store(look);
    });
  }
  const model = document.getElementById("settings-model");
  model.addEventListener("change", () => {
    dialog.close();
    say(`/model ${model.value}`);
  });
  const effort = document.getElementById("settings-effort");
  effort.addEventListener("change", () => {
    dialog.close();
    say(`/effort ${effort.value}`);
  });
  const language = document.getElementById("settings-language");
  language.append(...words.languages.map(([code, name]) => new Option(name, code)));
  language.value = words.language;
  language.addEventListener("change", () => {
    dialog.close();
    say(`/language ${language.value}`);
  });
}

/** Show the services that the person can sign in to; where there are none, the section is hidden. */
async function listServices(words, send) {
  const answer = await fetch("services", { cache: "no-store" }).catch(() => null);
  const { services } = answer?.ok ? await answer.json() : { services: [] };
  const section = document.getElementById("settings-services");
  section.hidden = services.length === 0;
  const entries = services.map(({ name, state, is_in: isIn }) => {
    const [item, text, button] = ["li", "span", "button"].map((tag) => document.createElement(tag));
    text.textContent = state;
    Object.assign(button, { type: "button", className: "quiet", textContent: isIn ? words.sign_out : words.sign_in });
    button.setAttribute("aria-label", `${button.textContent}: ${name}`);
    button.addEventListener("click", () => send(`/${isIn ? "logout" : "login"} ${name}`));
    item.append(text, button);
    return item;
  });
  section.querySelector("ul").replaceChildren(...entries);
}

/** Offer models and efforts that the chat can choose; where there is no choice, the field is hidden. */
async function offerModels() {
  const answer = await fetch("models", { cache: "no-store" }).catch(() => null);
  const { current, offered, chosen_effort, is_offline } = answer?.ok ? await answer.json() : { current: "", offered: [], is_offline: true };
  document.getElementById("settings-efforts").hidden = is_offline;
  document.getElementById("settings-effort").value = chosen_effort || "default";
  document.getElementById("settings-models").hidden = offered.every((each) => each === current);
  const model = document.getElementById("settings-model");
  const names = offered.includes(current) ? offered : [current, ...offered];
  model.replaceChildren(...names.map((name) => new Option(name, name)));
  model.value = current;
}

function apply(look) {
  for (const name of Object.keys(DEFAULTS)) root.dataset[name] = look[name];
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "{}");
  } catch {
    return {};
  }
}

function store(look) {
  try {
    localStorage.setItem(NAME, JSON.stringify(look));
  } catch {
    // Storage is full or forbidden: it is so until the page is left.
  }
}
