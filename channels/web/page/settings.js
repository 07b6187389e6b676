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

/** The profile, the model and its effort in the composer's bar, where the person has a choice; *say* is called with the command. */
export class ModelChoice {
  constructor(words, say) {
    this.words = words;
    this.boxes = Object.fromEntries(["as", "model", "effort"].map((each) => [each, document.getElementById(`${each}-choice`)]));
    this.allowed = [];
    this.reads = 0;
    for (const [command, box] of Object.entries(this.boxes)) {
      const choice = box.querySelector("select");
      choice.addEventListener("change", () => {
        if (!say(`/${command} ${choice.value}`)) this.read(); // nobody took it: what was chosen before is shown again
      });
    }
  }

  /** Offer the choices whose command is among *commands*, with what is chosen now. */
  allow(commands) {
    this.allowed = commands;
    this.read();
  }

  /** Read what is chosen now: a typed command changes it, too, in any window. */
  async read() {
    const turn = ++this.reads;
    const { as, model, effort } = this.boxes;
    const answer = this.allowed.length ? await fetch("models", { cache: "no-store" }).catch(() => null) : null;
    const offer = answer?.ok ? await answer.json() : { current: "", offered: [], is_offline: true, profile: "", profiles: [] };
    if (turn !== this.reads) return; // a later one is on its way
    const { current, offered, chosen_effort: chosen, is_offline: isOffline } = offer;
    effort.hidden = isOffline || !this.allowed.includes("effort");
    effort.querySelector("select").value = chosen || "default";
    model.hidden = offered.every((each) => each === current) || !this.allowed.includes("model");
    const names = offered.includes(current) ? offered : [current, ...offered];
    model.querySelector("select").replaceChildren(...names.map((name) => new Option(name, name, false, name === current)));
    as.hidden = offer.profiles.length === 0 || !this.allowed.includes("as");
    as.querySelector("select").replaceChildren(...this.profileOptions(offer));
  }

  /** Return the options of profiles: the default, unless it is a profile that the operator set, and those on offer. */
  profileOptions({ profile, profiles, has_chosen_profile: isChosen }) {
    const names = profile && !profiles.includes(profile) ? [profile, ...profiles] : profiles;
    const options = names.map((name) => new Option(name, name, false, name === profile));
    return profile && !isChosen ? options : [new Option(this.words.profile_default, "default", false, !profile), ...options];
  }
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
