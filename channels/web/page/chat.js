// The conversation on the screen: one element per line, found again by its ids.

import { copyButton, show } from "./markdown.js";
import { newId } from "./pending.js";
import { Pictures, player } from "./pictures.js";
import { showSources } from "./sources.js";
import { showSteps, toggleDetails } from "./turns.js";
import { Versions } from "./versions.js";

/** How dates and numbers are written: as the page's language has it, in the browser's own variety of it. */
const { lang } = document.documentElement;
export const LOCALE = navigator.languages.find((each) => each.split("-")[0] === lang) ?? lang;

const CLOCK = new Intl.DateTimeFormat(LOCALE, { timeStyle: "short" });

const NEAR = 80; // pixels from the end that still count as reading the newest, and from the top as the oldest
const SHOWN_FIRST = 24; // newest lines of a history, more than a window shows; the others are drawn behind them
const ADJACENT = 40; // lines above the oldest one that the browser draws although they are out of sight

export class Chat {
  constructor(words, { say, edit, press, earlier, conversation }) {
    this.words = words;
    this.versions = new Versions(words);
    this.pictures = new Pictures(words);
    this.onSay = say; // called with text, files and the id of the message it replaces, to be said
    this.onEdit = edit; // called with the text of a message that a reader wants to edit, and the id it replaces
    this.onPress = press; // called with a press that shall be sent; returns false when nobody can take it
    this.onEarlier = earlier; // called with a line's id when the lines before it are wanted
    this.conversation = conversation; // returns the id of the open one
    this.scroller = document.getElementById("scroller");
    this.list = document.getElementById("lines");
    this.newest = document.getElementById("newest");
    this.spoken = document.getElementById("spoken");
    this.stays = true;
    this.forget();
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.follow()).observe(this.list);
    new ResizeObserver(() => this.follow()).observe(this.scroller);
    this.newest.addEventListener("click", () => this.toEnd());
  }

  forget() {
    this.list.replaceChildren();
    this.versions.forget();
    this.mine = new Map(); // message id -> element
    this.parts = new Map(); // part id -> element
    this.previews = new Map(); // turn -> element
    this.told = new Map(); // turn -> texts that the history showed
    this.lastOf = new Map(); // turn that was answered here -> its last line
    this.waiting = new Map(); // turn -> text not drawn yet
    this.presses = new Map(); // press id -> row of buttons; null for a control outside the conversation
    this.pressed = new Map(); // turn that answers a press -> row of buttons
    this.lastDay = "";
    this.before = ""; // where the oldest line stands when there are older ones that nobody asked for
    this.sought = ""; // turn that a reader wants to see
    this.later = []; // lines of the history that are not drawn yet
  }

  get isEmpty() {
    return this.list.childElementCount === 0;
  }

  /** Show the conversation as the server has it; *before* is set when there are lines before these. */
  restore(lines, before = "") {
    this.forget();
    let start = Math.max(lines.length - SHOWN_FIRST, 0);
    while (start > 0 && lines[start].role !== "user") start -= 1; // a turn is drawn as a whole
    this.add(lines.slice(start));
    this.versions.arrange(this.list);
    this.toEnd();
    if (start > 0) this.drawLater(lines.slice(0, start), before);
    else {
      this.before = before;
      this.askEarlier();
    }
  }

  /** Draw lines above the newest ones once those are on the screen. */
  drawLater(lines, before) {
    this.later = lines;
    afterFrames(2, () => {
      if (this.later !== lines) return; // another history came
      this.later = [];
      this.prepend(lines, before);
    });
  }

  /** Show the lines of *turn*, however far back they are. */
  seek(turn) {
    this.sought = turn;
    if (!turn) return;
    const line = [...this.list.children].find((each) => each.dataset.turn === turn);
    if (line) {
      this.sought = "";
      this.stays = false;
      this.versions.reveal(line);
      line.scrollIntoView({ block: "center" });
      line.classList.add("found");
      line.addEventListener("animationend", () => line.classList.remove("found"), { once: true });
    } else if (this.before) this.askBefore();
  }

  /** Show lines above the oldest ones, without moving what is being read. */
  prepend(lines, before) {
    const { list, lastDay, scroller } = this;
    const { scrollTop, scrollHeight } = scroller;
    this.list = new DocumentFragment();
    this.lastDay = "";
    this.add(lines);
    const first = list.firstElementChild;
    if (first?.dataset.day === this.lastDay) first.remove();
    else if (first && !first.dataset.day) this.day(new Date()); // only today begins without a heading
    // The browser draws these next: with guessed heights until then, what is being read would move.
    const adjacent = [...this.list.children].slice(-ADJACENT);
    for (const each of adjacent) each.classList.add("drawn");
    list.prepend(this.list);
    Object.assign(this, { list, lastDay, before });
    this.versions.arrange(list);
    scroller.scrollTop = scrollTop + scroller.scrollHeight - scrollHeight;
    afterFrames(2, () => adjacent.forEach((each) => each.classList.remove("drawn")));
    this.seek(this.sought);
    this.askEarlier();
  }

  /** Ask once for the lines before the oldest one when a reader is near it. */
  askEarlier() {
    if (this.before && this.scroller.scrollTop <= NEAR) this.askBefore();
  }

  askBefore() {
    const { before } = this;
    this.before = "";
    this.onEarlier(before);
  }

  add(lines) {
    let answer; // the last one
    for (const line of lines) {
      if (line.role === "divider") this.divider();
      else if (line.sources && answer?.dataset.turn === line.turn) showSources(answer, line.sources, this.words);
      else if (line.role === "user") {
        const said = this.say({ ...line, id: line.message || line.id, files: [] });
        said.dataset.turn = line.turn;
        this.mark(said, "accepted");
        if (line.files?.length) this.files(said, line.files);
      } else {
        const told = this.line(line.role, line.at);
        told.dataset.turn = line.turn;
        this.write(told, line.text, line.links);
        this.files(told, line.files ?? []);
        this.offerAnother(told);
        if (line.role === "assistant") answer = told;
        if (line.partial) this.offerRest(told);
        if (line.steps || line.reasoning) showSteps(told, { count: line.steps ?? 0 }, this.conversation(), this.words);
        if (line.buttons) {
          this.parts.set(line.part, told);
          this.buttons(told, line.part, line.buttons);
        }
        if (line.role === "notice") this.offerRetry(told);
        this.told.set(line.turn, [...(this.told.get(line.turn) ?? []), { role: line.role, text: line.text }]);
      }
    }
  }

  /** Return the lines of people here, the oldest first; `mine` has them as they came. */
  said() {
    return [...this.list.querySelectorAll(".line.user")];
  }

  /** True when the server has the message *id* of a person here. */
  hasAccepted(id) {
    if (this.later.some((line) => (line.message || line.id) === id)) return true;
    return this.mine.get(id)?.dataset.state === "accepted";
  }

  /** Show what a person here said; a known id changes nothing. */
  say({ id, text, at, files = [], replaces }) {
    if (this.mine.has(id)) return this.mine.get(id);
    const line = this.line("user", at);
    line.dataset.message = id;
    line.source = text;
    if (replaces) line.dataset.replaces = replaces;
    line.querySelector(".body").textContent = text;
    line.querySelector(".body").classList.toggle("command", isCommand(text));
    const state = document.createElement("span");
    state.className = "mark";
    line.querySelector(".meta").append(state);
    // Another version has the files of the message that it replaces, unless it brings its own.
    this.files(line, files.length || !replaces ? files : (this.mine.get(replaces)?.shownFiles ?? []));
    line.sentFiles = files;
    if (!isCommand(text)) line.querySelector(".meta").prepend(this.action("edit", () => this.edit(line)));
    this.mine.set(id, line);
    this.mark(line, "sending");
    if (replaces && this.list.isConnected) this.versions.arrange(this.list);
    return line;
  }

  /** Show how far a message got: sending, accepted or refused (with the server's line). */
  mark(line, state, text = "") {
    line.dataset.state = state;
    const mark = line.querySelector(".mark");
    mark.textContent = { sending: "○", accepted: "✓", refused: "✕" }[state];
    mark.title = this.words[`message_${state}`];
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", mark.title);
    line.querySelector(".why")?.remove();
    if (text) {
      const why = document.createElement("p");
      why.className = "why";
      why.textContent = text;
      line.append(why);
    }
  }

  accepted(id) {
    const line = this.mine.get(id);
    if (line) this.mark(line, "accepted");
  }

  /** Show that a message was not taken, why, and a way to try once more. */
  refused(id, text) {
    const line = this.mine.get(id);
    if (!line) return;
    this.mark(line, "refused", text);
    const { replaces } = line.dataset;
    delete line.dataset.replaces; // the earlier version is in force
    this.versions.arrange(this.list);
    const again = document.createElement("button");
    again.type = "button";
    again.className = "quiet";
    again.textContent = this.words.message_again;
    again.addEventListener("click", () => {
      line.remove();
      this.mine.delete(id);
      this.onSay(line.source, line.sentFiles, replaces);
    });
    line.querySelector(".why").append(" ", again);
  }

  /** Show the text so far of a turn; drawn once per frame, however many come. *since* is set when it began before us. */
  preview({ turn, text, since, links }) {
    if (this.wasTold(turn, "answer", text)) return;
    if (this.waiting.size === 0) requestAnimationFrame(() => this.drawPreviews());
    this.waiting.set(turn, { text, links, since: since ?? this.waiting.get(turn)?.since });
  }

  drawPreviews() {
    for (const [turn, { text, links, since }] of this.waiting) this.write(this.streaming(turn, since), text, links);
    this.waiting.clear();
    this.follow();
  }

  /** Return the line in which the answer of *turn* grows. */
  streaming(turn, since) {
    if (!this.previews.has(turn)) {
      const line = this.line("assistant", since ?? new Date().toISOString());
      if (since) this.firstAfter(since)?.before(line);
      line.classList.add("streaming");
      this.previews.set(turn, line);
    }
    return this.previews.get(turn);
  }

  /** Show the tool calls of *turn* so far, above its answer. */
  steps(turn, steps) {
    if (this.told.has(turn)) return; // the history has them
    const line = this.lastOf.get(turn) ?? this.streaming(turn);
    line.dataset.turn = turn;
    showSteps(line, { steps, count: steps.length }, this.conversation(), this.words);
    this.follow();
  }

  /** Return the first line that was seen later than *since*; undefined when there is none. */
  firstAfter(since) {
    const lines = [...this.list.querySelectorAll(".line")];
    return lines.find((line) => new Date(line.querySelector("time").dateTime) > new Date(since));
  }

  /** Show a message of the server's: in its preview's place, or anew; a part that stands is written over. */
  message({ part, turn, text, links, is_plain: isPlain, kind, marked, replaces, file, buttons, settles, partial, answers, sources = [] }) {
    if (settles) this.pressed.get(turn)?.remove();
    this.pressed.delete(turn);
    this.waiting.delete(turn);
    const known = this.parts.get(part) ?? this.parts.get(replaces);
    if (!known && this.wasTold(turn, kind, text)) return;
    // A notice says why there is no more: what was read stays above it.
    const growing = this.previews.get(turn);
    const preview = kind === "notice" ? undefined : growing;
    if (kind === "notice") growing?.classList.remove("streaming");
    const line = known ?? preview ?? this.line(kind === "notice" ? "notice" : "assistant", new Date().toISOString());
    if (line === preview) this.previews.delete(turn);
    line.classList.remove("streaming");
    this.parts.set(part, line);
    line.dataset.turn = turn;
    this.lastOf.set(turn, line);
    if (kind === "notice" && growing && !growing.source) {
      // Nothing was read yet but its steps, which stand above the notice now.
      if (growing.querySelector(".steps")) line.querySelector(".body").before(growing.querySelector(".steps"));
      growing.remove();
      this.previews.delete(turn);
    }
    if (answers) line.dataset.answers = answers;
    this.offerAnother(line);
    if (isPlain) this.writePlain(line, text);
    else this.write(line, text, links);
    showSources(line, sources, this.words);
    this.files(line, file ? [file] : []);
    this.buttons(line, part, buttons);
    if (partial) this.offerRest(line);
    if (kind === "notice") this.offerRetry(line);
    if (marked) this.note(line, this.words.may_repeat);
    this.spoken.textContent = file ? file.name : line.querySelector(".body").textContent;
    this.follow();
  }

  /** Return what was said here and is not in *lines*, the newest part of the history: a Stop has ended it unanswered. */
  unansweredIn(lines) {
    const known = new Set(lines.map((line) => line.message || line.id));
    const said = this.said();
    // By place, since clocks differ: what stands above the first known line may be in an older part.
    const first = said.findIndex((line) => known.has(line.dataset.message));
    if (first < 0 && lines.length) return [];
    return said
      .slice(Math.max(first, 0))
      .filter(({ dataset, source }) => dataset.state === "accepted" && !known.has(dataset.message) && !isCommand(source))
      .map(({ source: text, sentFiles, shownFiles }) => {
        // Only the window that handed a file over can send it again.
        const files = sentFiles.filter(({ token }) => token);
        return { text, files, hasLost: files.length < shownFiles.length };
      });
  }

  /** True when this message may have answered /new. */
  hasEnded({ kind }) {
    const said = this.said().at(-1)?.source ?? "";
    return kind === "notice" && /^\/new\b/i.test(said);
  }

  wasTold(turn, kind, text) {
    const told = this.told.get(turn) ?? [];
    if (kind === "answer" && told.some((line) => line.role === "assistant")) return true;
    return told.some((line) => line.text.includes(text.trim()));
  }

  note(line, text) {
    line.querySelector(".note")?.remove();
    const note = document.createElement("span");
    note.className = "note";
    note.textContent = text;
    line.querySelector(".meta").append(note);
  }

  write(line, text, links) {
    line.source = text;
    show(line.querySelector(".body"), text, this.words, links);
  }

  writePlain(line, text) {
    const body = line.querySelector(".body");
    line.source = text;
    body.textContent = text;
    body.shownBlocks = undefined;
  }

  /** Show a link per file below what was said; following one saves it. */
  files(line, files) {
    line.shownFiles = files;
    line.querySelector(".files")?.remove();
    if (files.length === 0) return;
    const list = document.createElement("div");
    list.className = "files";
    for (const file of files) {
      // What was only sent so far has no address yet.
      const link = document.createElement(file.href ? "a" : "span");
      link.className = "file";
      if (file.href) {
        link.href = file.href;
        link.download = file.name;
      }
      link.dir = "auto";
      const size = document.createElement("small");
      size.textContent = sizeOf(file.size);
      link.append(file.name, " ", size);
      const shown = this.pictures.thumbnail(file) ?? player(file);
      if (shown) list.append(shown);
      list.append(link);
    }
    line.querySelector(".body").after(list);
  }

  /** Show rows of buttons below a message; each stands for a command of whoever presses it. */
  buttons(line, part, rows) {
    for (const row of line.querySelectorAll(".buttons")) row.remove();
    for (const choices of rows) {
      const row = document.createElement("div");
      row.className = "buttons";
      row.setAttribute("role", "group");
      for (const { label, command } of choices) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "choice";
        button.textContent = label;
        button.addEventListener("click", () => this.press(row, part, command));
        row.append(button);
      }
      line.querySelector(".meta").before(row);
    }
  }

  press(row, part, command) {
    const id = newId();
    this.presses.set(id, row);
    if (row) this.enable(row, false);
    const isSent = this.onPress({ id, part, command });
    if (!isSent) this.unpressed(id);
    return isSent ? id : "";
  }

  /** Send the command of a control outside the conversation; return the id of the press, "" when nobody can take it. */
  run(command) {
    return this.press(null, "", command);
  }

  /** Take note of how far a press got; true when *id* is one. */
  pressTaken(id, turn) {
    const row = this.presses.get(id);
    if (row) {
      this.pressed.set(turn, row);
      this.enable(row, true);
    }
    return this.presses.delete(id);
  }

  /** A press that was not taken can be tried again; true when *id* is one. */
  unpressed(id) {
    const row = this.presses.get(id);
    if (row) this.enable(row, true);
    return this.presses.delete(id);
  }

  enable(row, isOn) {
    for (const button of row.children) button.disabled = !isOn;
  }

  line(role, at) {
    const time = new Date(at);
    this.day(time);
    const line = document.createElement("li");
    line.className = `line ${role}`;
    const who = document.createElement("span");
    who.className = "spoken";
    who.textContent = role === "user" ? this.words.you : this.words.bot;
    const body = document.createElement("div");
    body.className = "body";
    body.dir = "auto";
    const meta = document.createElement("div");
    meta.className = "meta";
    const clock = document.createElement("time");
    clock.dateTime = at;
    clock.textContent = CLOCK.format(time);
    meta.append(clock);
    if (role === "assistant") meta.append(this.copyButton(line), this.action("answer_again", () => this.answerAgain(line)), this.detailsButton(line));
    line.append(who, body, meta);
    this.list.append(line);
    return line;
  }

  /** Show where /new began anew: the bot's answers below know nothing of the lines above but what it remembers. */
  divider() {
    const mark = document.createElement("li");
    mark.className = "divider";
    mark.textContent = this.words.divider;
    this.list.append(mark);
  }

  /** A button that copies an answer as the bot wrote it. */
  copyButton(line) {
    const button = copyButton("copy", this.words, () => line.source);
    button.setAttribute("aria-label", this.words.copy_answer);
    return button;
  }

  /** A button that shows which model answered, with its tokens and cost. */
  detailsButton(line) {
    const button = this.action("details", () => toggleDetails(button, line, this.conversation(), this.words));
    button.setAttribute("aria-expanded", "false");
    return button;
  }

  action(word, does) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = `copy ${word}`;
    button.textContent = this.words[word];
    button.addEventListener("click", does);
    return button;
  }

  /** Offer to go on with an answer that ended early; the style shows it below the last answer only. */
  offerRest(line) {
    if (line.querySelector(".continue")) return;
    line.querySelector(".meta").append(this.action("continue", () => this.onSay(this.words.continue)));
  }

  /** Offer to try once more where a notice stands in place of an answer. */
  offerRetry(line) {
    line.querySelector(".retry")?.remove();
    const said = this.answered(line);
    const before = line.previousElementSibling;
    const isAnswered = before?.dataset.turn === line.dataset.turn && before.matches(".assistant:not(:has(.continue))");
    if (!said || isCommand(said.source) || isAnswered || line.querySelector(".buttons, .files, .sources")) return;
    line.querySelector(".meta").append(this.action("try_again", () => this.answerAgain(line)));
    line.querySelector(".meta > .try_again").classList.add("retry");
  }

  /** Let a reader edit what was said in *line*; above a divider it can only be said as a new message. */
  edit(line) {
    this.onEdit(line.source, this.replaceable(line));
  }

  /** Have the message that *line* answers answered once more. */
  answerAgain(line) {
    const said = this.answered(line);
    if (said) this.onSay(said.source, [], this.replaceable(said));
  }

  /** Return the message that *line* answers; undefined for what came by itself, such as a reminder. */
  answered(line) {
    const { answers, turn } = line.dataset;
    if (answers) return this.mine.get(answers);
    return [...this.mine.values()].findLast((each) => each.dataset.turn === turn && !isCommand(each.source));
  }

  /** Offer another answer where *line* answers a message. */
  offerAnother(line) {
    const button = line.querySelector(".answer_again");
    if (button) button.hidden = !this.answered(line);
  }

  /** Edit the last message of a person here; false when there is none. */
  editLast() {
    const line = this.said().findLast((each) => !each.hidden && !isCommand(each.source));
    if (line) this.edit(line);
    return Boolean(line);
  }

  replaceable(line) {
    const dividers = this.list.querySelectorAll(".divider");
    const divider = dividers[dividers.length - 1];
    const isAbove = divider && line.compareDocumentPosition(divider) & Node.DOCUMENT_POSITION_FOLLOWING;
    return isAbove ? "" : this.versions.latest(line.dataset.message);
  }

  day(time) {
    const day = time.toDateString();
    if (day === this.lastDay) return;
    // Today needs no heading when the conversation begins with it.
    if (this.lastDay !== "" || day !== new Date().toDateString()) {
      const mark = document.createElement("li");
      mark.className = "day";
      mark.dataset.day = day;
      mark.textContent = time.toLocaleDateString(LOCALE, { weekday: "long", day: "numeric", month: "long" });
      this.list.append(mark);
    }
    this.lastDay = day;
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.stays = scrollHeight - scrollTop - clientHeight < NEAR;
    this.newest.hidden = this.stays;
    this.askEarlier();
  }

  follow() {
    if (this.stays) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  toEnd() {
    this.stays = true;
    this.newest.hidden = true;
    this.follow();
  }
}

/** Call *then* when *count* frames were drawn. */
function afterFrames(count, then) {
  requestAnimationFrame(() => (count > 1 ? afterFrames(count - 1, then) : then()));
}

function isCommand(text) {
  return /^\/[a-z]/i.test(text);
}

/** A number of bytes as people read it. */
export function sizeOf(bytes) {
  const unit = bytes < 1e3 ? "byte" : bytes < 1e6 ? "kilobyte" : "megabyte";
  const amount = bytes / { byte: 1, kilobyte: 1e3, megabyte: 1e6 }[unit];
  return new Intl.NumberFormat(LOCALE, { style: "unit", unit, maximumFractionDigits: 1 }).format(amount);
}
