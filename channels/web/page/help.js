// What a person can type: the menu of commands above the composer, and the sheet of the keys.

const MOST = 8; // commands shown at once

/** True for a key that an input method takes; Safari has ended the composition when Enter ends a word. */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

/** The menu that opens while a command is typed. Enter sends what was typed, unless an entry was chosen with the arrows. */
export class CommandMenu {
  constructor(words, onChosen) {
    this.known = words.commands; // [name, what it does]
    this.commands = this.known;
    this.onChosen = onChosen; // called when the composer has another text
    this.text = document.getElementById("text");
    this.menu = document.getElementById("commands");
    this.chosen = -1;
    this.text.addEventListener("blur", () => this.close());
    this.menu.addEventListener("pointerdown", (event) => event.preventDefault()); // the composer keeps its focus
    // Before the composer's own keys: what this menu takes, they do not see.
    this.text.addEventListener("keydown", (event) => this.key(event), { capture: true });
  }

  /** Offer the commands in *names* only: the others need another role. */
  allow(names) {
    this.commands = this.known.filter(([name]) => names.includes(name));
  }

  get isOpen() {
    return !this.menu.hidden;
  }

  /** Show the commands that begin with what is typed; none when there is nothing left to complete. */
  draw() {
    const typed = /^\/([a-z-]*)$/i.exec(this.text.value)?.[1].toLowerCase();
    const found = typed === undefined ? [] : this.commands.filter(([name]) => name.startsWith(typed));
    const isWhole = found.length === 1 && found[0][0] === typed;
    this.menu.replaceChildren(...(isWhole ? [] : found).slice(0, MOST).map((command, n) => this.entry(command, n)));
    this.menu.hidden = this.menu.childElementCount === 0;
    this.choose(-1);
  }

  entry([name, help], n) {
    const entry = document.createElement("li");
    entry.id = `command-${n}`;
    entry.setAttribute("role", "option");
    const command = document.createElement("code");
    command.textContent = `/${name}`;
    entry.append(command, ` ${help}`);
    entry.dataset.name = name;
    entry.addEventListener("click", () => this.take(n));
    return entry;
  }

  key(event) {
    if (!this.isOpen || isComposing(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    const count = this.menu.childElementCount;
    if (event.key === "ArrowDown") this.choose((this.chosen + 1) % count);
    else if (event.key === "ArrowUp") this.choose((this.chosen <= 0 ? count : this.chosen) - 1);
    else if (event.key === "Escape") this.close();
    else if (event.key === "Tab" && !event.shiftKey) this.take(Math.max(this.chosen, 0));
    else if (event.key === "Enter" && this.chosen >= 0) this.take(this.chosen);
    else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  choose(n) {
    this.chosen = n;
    for (const [i, entry] of [...this.menu.children].entries()) entry.setAttribute("aria-selected", String(i === n));
    this.menu.children[n]?.scrollIntoView({ block: "nearest" });
    if (n < 0) this.text.removeAttribute("aria-activedescendant");
    else this.text.setAttribute("aria-activedescendant", `command-${n}`);
  }

  take(n) {
    this.text.value = `/${this.menu.children[n].dataset.name} `;
    this.close();
    this.text.focus();
    this.onChosen();
  }

  close() {
    this.menu.hidden = true;
    this.choose(-1);
  }
}

/** Open the sheet of the keys by its button, and by "?" where nothing is typed. */
export function listenForHelp() {
  const sheet = document.getElementById("keys");
  const open = () => {
    if (!document.querySelector("dialog[open]")) sheet.showModal();
  };
  document.getElementById("help").addEventListener("click", open);
  document.getElementById("keys-close").addEventListener("click", () => sheet.close());
  addEventListener("keydown", (event) => {
    if (event.key !== "?" || event.target.closest("input, textarea")) return;
    event.preventDefault();
    open();
  });
}
