// The panels of what the bot keeps of a person: remembered lines with their source, reminders and tasks.
// They are read from the server; every change is the command that a person could type, sent in the open conversation.

import { isComposing } from "./help.js";

export class Panels {
  constructor(words, onSay) {
    this.words = words;
    this.onSay = onSay; // called with a command
    this.loads = 0;
    this.panels = [
      { name: "memory", field: "lines", empty: words.memory_empty, entry: (line) => this.remembered(line) },
      { name: "reminders", field: "reminders", empty: words.reminders_empty, entry: (each) => this.reminder(each) },
      { name: "tasks", field: "tasks", empty: words.tasks_empty, entry: (each) => this.task(each) },
    ];
    for (const panel of this.panels) {
      panel.dialog = document.getElementById(panel.name);
      document.getElementById(`${panel.name}-open`).addEventListener("click", () => this.open(panel));
      panel.dialog.querySelector(".primary").addEventListener("click", () => panel.dialog.close());
    }
  }

  open(panel) {
    this.fill(panel, null);
    panel.dialog.showModal();
    this.load(panel);
  }

  close() {
    for (const { dialog } of this.panels) dialog.close();
    for (const panel of this.panels) this.fill(panel, null);
  }

  /** Read the open panel again: an answer may have changed it. What is being typed stays. */
  refresh() {
    const panel = this.panels.find(({ dialog }) => dialog.open && !dialog.querySelector("input"));
    if (panel) this.load(panel);
  }

  async load(panel) {
    const turn = ++this.loads;
    const answer = await fetch(panel.name, { cache: "no-store" }).catch(() => null);
    const told = answer?.ok ? await answer.json() : null;
    if (turn !== this.loads || !panel.dialog.open) return;
    this.fill(panel, told ? told[panel.field] : null, this.words.panel_failed);
    const note = panel.dialog.querySelector(".note");
    if (note) note.hidden = !(note.textContent = told?.note ?? "");
  }

  /** Show the entries; without them, *line*. */
  fill({ dialog, empty, entry }, found, line = "") {
    dialog.querySelector(".empty").textContent = found ? (found.length === 0 ? empty : "") : line;
    dialog.querySelector("ul").replaceChildren(...(found ?? []).map(entry));
  }

  remembered(line) {
    const source = element("p", "source");
    source.hidden = true;
    const why = this.button(this.words.memory_why, () => this.explain(line, source, item, why));
    const item = this.item(line, [
      why,
      this.button(this.words.memory_correct, () => this.ask(item, line, "text", (text) => this.say(`/memory correct ${line}\n${text}`))),
      this.button(this.words.memory_drop, () => this.say(`/memory drop ${line}`)),
      this.button(this.words.memory_forget, () => {
        this.close(); // the question stands in the conversation
        this.onSay(`/forget ${line}`);
      }),
    ]);
    item.append(source);
    return item;
  }

  async explain(line, source, item, why) {
    why.disabled = true;
    const answer = await fetch(`memory/source?${new URLSearchParams({ line })}`, { cache: "no-store" }).catch(() => null);
    why.disabled = false;
    source.hidden = false;
    if (!answer?.ok) {
      source.textContent = this.words.panel_failed;
      return;
    }
    const { text, change } = await answer.json();
    source.textContent = text.replace(/^`(\w+)`/, "$1"); // the name of the change, as Markdown has it
    why.replaceWith(this.button(this.words.memory_undo, () => this.say(`/memory undo ${change}`)));
    item.querySelector("button").focus();
  }

  reminder({ id, text, at, when, repeat, is_paused: isPaused, chats, chat }) {
    const runs = element("ul", "runs");
    runs.hidden = true;
    const history = this.button(this.words.reminder_runs, () => this.showRuns(id, runs, history));
    history.setAttribute("aria-expanded", "false");
    const item = this.item(text, [
      this.button(this.words.reminder_move, () =>
        this.ask(item, at.slice(0, 16), "datetime-local", (time) => this.say(`/reminders move ${id} ${time}`)),
      ),
      this.button(this.words.reminder_run, () => this.say(`/reminders run ${id}`)),
      this.button(this.words.reminder_cancel, () => this.say(`/reminders stop ${id}`)),
      history,
      runs,
    ]);
    const details = element("p");
    details.textContent = [when, repeat, isPaused ? this.words.reminder_paused : ""].filter(Boolean).join(" · ");
    item.querySelector("p").after(details);
    const titles = Object.entries(chats);
    if (titles.length > 1) {
      const label = element("label");
      const choice = element("select");
      choice.append(...titles.map(([key, title]) => new Option(title, key)));
      choice.value = chat;
      choice.addEventListener("change", () => this.say(`/reminders to ${id} ${choice.value}`));
      label.append(`${this.words.reminder_chat} `, choice);
      runs.before(label);
    }
    return item;
  }

  /** Show how the last runs ended, or hide them again. */
  async showRuns(id, list, history) {
    const isShown = list.hidden;
    history.setAttribute("aria-expanded", String(isShown));
    list.hidden = !isShown;
    if (!isShown) return;
    list.replaceChildren();
    const answer = await fetch(`reminders/runs?${new URLSearchParams({ id })}`, { cache: "no-store" }).catch(() => null);
    const { runs } = answer?.ok ? await answer.json() : { runs: null };
    const lines = (runs ?? []).map(({ when, state, spent }) => [`${when}: ${state}`, spent].filter(Boolean).join(" · "));
    if (lines.length === 0) lines.push(runs ? this.words.reminder_runs_empty : this.words.panel_failed);
    list.replaceChildren(...lines.map((line) => Object.assign(element("li"), { textContent: line })));
  }

  task({ id, text, state, is_over: isOver }) {
    const stop = this.button(this.words.task_stop, () => this.say(`/tasks stop ${id}`));
    const item = this.item(text, isOver ? [] : [stop]);
    const details = element("p");
    details.textContent = state;
    item.querySelector("p").after(details);
    return item;
  }

  /** Let a value be typed in the entry: Enter keeps it, Escape does not. */
  ask(item, value, type, keep) {
    if (item.querySelector("form")) return;
    const form = element("form");
    const field = element("input");
    Object.assign(field, { type, value, required: true });
    field.setAttribute("aria-label", item.querySelector("p").textContent);
    const save = this.button(this.words.save, () => {});
    save.type = "submit";
    form.append(field, save);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      if (field.value.trim() && field.value !== value) keep(field.value.trim());
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || isComposing(event)) return;
      event.preventDefault(); // or the panel closes
      form.remove();
      item.querySelector("button").focus();
    });
    item.append(form);
    field.focus();
  }

  say(command) {
    this.onSay(command); // its answer reads the panel again
  }

  item(text, buttons) {
    const item = element("li");
    const words = element("p");
    words.dir = "auto";
    words.textContent = text;
    item.append(words, ...buttons);
    return item;
  }

  button(label, action) {
    const button = element("button", "quiet");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", action);
    return button;
  }
}

function element(tag, name = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  return made;
}
