// Settings: theme and text size are of this browser; the language is the chat's, and changed by its command.

const NAME = `parlour.look.${new URL(".", document.baseURI).pathname}`;
const DEFAULTS = { theme: "system", size: "normal" };
const root = document.documentElement;

/** Apply what was chosen here before, and let it be changed; *say* is called with the command for another language. */
export function listenForSettings(words, say) {
  const look = { ...DEFAULTS, ...stored() };
  apply(look);
  const dialog = document.getElementById("settings");
  document.getElementById("settings-open").addEventListener("click", () => {
    dialog.showModal();
    offerModels();
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
