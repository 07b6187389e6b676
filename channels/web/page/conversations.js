// The sidebar: a person's conversations, what can be done with each, and the search over what was said in them.
// The conversation that is open stands in the address, behind "#c="; without one it is the one that was used last.

import { LOCALE } from "./chat.js";
import { isComposing } from "./help.js";
import { openSharing } from "./sharing.js";

export const FIRST = "main";
const REACHABLE = "a, button";
const SEARCH_AFTER = 250; // milliseconds without a key
const NARROW = matchMedia("(max-width: 720px)"); // where the sidebar lies over the conversation

export class Conversations {
  constructor(words, onOpen, onSeek, onRun, onList) {
    this.words = words;
    this.onOpen = onOpen; // called when another conversation is opened
    this.onList = onList; // called with the list that the server gave
    this.onRun = onRun; // called with a command; returns false when nobody can take it
    this.onSeek = onSeek; // called with the turn of a hit in the open conversation
    this.sidebar = document.getElementById("sidebar");
    this.toggle = document.getElementById("sidebar-toggle");
    this.list = document.getElementById("conversations");
    this.hits = document.getElementById("hits");
    this.bin = document.getElementById("deleted");
    this.find = document.getElementById("find");
    this.menu = document.getElementById("options");
    this.known = [];
    this.unread = new Set();
    this.current = inAddress();
    this.isChosen = location.hash.startsWith("#c=");
    this.sought = "";
    this.searches = 0;
    this.loads = 0;
    this.loaded = "";
    this.listen();
    this.show(!NARROW.matches);
  }

  listen() {
    document.getElementById("new-chat").addEventListener("click", () => this.begin());
    this.toggle.addEventListener("click", () => this.show(this.sidebar.hidden, true));
    this.sidebar.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && NARROW.matches) this.show(false, true);
    });
    document.getElementById("scrim").addEventListener("click", () => this.show(false));
    NARROW.addEventListener("change", () => this.show(!NARROW.matches));
    addEventListener("hashchange", () => this.follow());
    this.menu.addEventListener("keydown", (event) => this.menuKey(event));
    this.menu.addEventListener("toggle", (event) => {
      const isOpen = event.newState === "open";
      this.optionsOf(this.menu.dataset.id)?.setAttribute("aria-expanded", String(isOpen));
      // The browser gives the focus back to a button that a list drawn anew has replaced.
      if (!isOpen && [document.body, null].includes(document.activeElement)) this.optionsOf(this.menu.dataset.id)?.focus();
    });
    for (const moved of ["resize", "hashchange"]) addEventListener(moved, () => this.menu.hidePopover());
    this.find.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.search(), SEARCH_AFTER);
    });
    addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.altKey || document.querySelector("dialog[open]")) return;
      const key = event.key.toLowerCase();
      if (key === "k" && !event.shiftKey) this.show(true, true);
      else if (key === "o" && event.shiftKey) this.begin();
      else return;
      event.preventDefault();
    });
  }

  /** Show the sidebar or hide it; on a phone it lies over everything else, which cannot be reached meanwhile. */
  show(isShown, hasFocus = false) {
    const isOver = isShown && NARROW.matches;
    this.sidebar.hidden = !isShown;
    this.toggle.setAttribute("aria-expanded", String(isShown));
    document.getElementById("scrim").hidden = !isOver;
    for (const part of document.querySelectorAll("main, footer")) part.inert = isOver;
    if (hasFocus) (isShown ? this.find : this.toggle).focus();
  }

  begin() {
    const letters = "abcdefghijklmnopqrstuvwxyz234567";
    const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => letters[byte % 32]).join("");
    this.open(id);
    if (NARROW.matches) this.show(false);
    document.getElementById("text").focus();
  }

  /** Begin with the conversation *latest*, unless another one was chosen. */
  start(latest) {
    if (!this.isChosen && latest !== this.current) {
      history.replaceState(null, "", `#c=${latest}`);
      this.current = latest;
    }
    this.isChosen = true;
  }

  open(id, turn = "") {
    this.isChosen = true;
    this.sought = turn;
    if (id === this.current) {
      if (turn) this.onSeek(this.takeSought());
      return;
    }
    location.hash = `c=${id}`;
    this.follow(); // at once: what is typed next belongs there
  }

  follow() {
    const id = inAddress();
    if (id === this.current) return;
    this.current = id;
    this.unread.delete(id);
    this.draw();
    if (NARROW.matches) this.show(false);
    this.onOpen(id);
  }

  /** Return the turn that is looked for in the conversation just opened, once. */
  takeSought() {
    const turn = this.sought;
    this.sought = "";
    return turn;
  }

  /** Forget everything of the person who leaves. */
  forget() {
    clearTimeout(this.timer);
    this.searches += 1; // an answer that is on its way comes too late
    this.loads += 1;
    this.loaded = "";
    this.known = [];
    this.unread.clear();
    this.sought = "";
    this.find.value = "";
    this.hits.querySelector("ol").replaceChildren();
    this.showHits(null);
    this.open(FIRST);
    this.isChosen = false; // by whoever comes next
    this.draw();
  }

  news(id) {
    this.unread.add(id);
    this.draw();
  }

  async load() {
    const turn = ++this.loads;
    const answer = await fetch("conversations", { cache: "no-store" }).catch(() => null);
    const list = answer?.ok ? await answer.text() : this.loaded;
    if (turn !== this.loads || list === this.loaded) return; // a later one is on its way, or nothing has changed
    this.take(list);
    this.onList(list);
  }

  /** Show the list of a text of JSON. */
  take(list) {
    this.loaded = list;
    this.known = JSON.parse(list).conversations;
    this.draw();
  }

  titleOf({ id, title }) {
    return title || (id === FIRST ? this.words.first_conversation : this.words.new_chat);
  }

  draw() {
    if (this.list.querySelector("input")) return; // a name is being typed
    const kept = this.known.filter((each) => !each.deleted);
    const place = this.place(); // a list that is drawn anew under somebody's hands stays as it was
    if (!kept.some((each) => each.id === this.current)) kept.unshift({ id: this.current, title: "", isNew: true });
    const [pinned, others] = [kept.filter((each) => each.pinned), kept.filter((each) => !each.pinned)];
    const groups = new Map(pinned.length ? [[this.words.pinned, pinned]] : []);
    for (const each of others) groups.set(dayOf(each), [...(groups.get(dayOf(each)) ?? []), each]);
    const entries = [...groups].map(([name, group]) => [groupTitle(name), ...group.map((each) => this.entry(each))]);
    this.list.replaceChildren(...entries.flat());
    const deleted = this.known.filter((each) => each.deleted);
    this.bin.hidden = deleted.length === 0;
    this.bin.querySelector("ul").replaceChildren(...deleted.map((each) => this.deletedEntry(each)));
    this.restorePlace(place);
    const open = kept.find((each) => each.id === this.current);
    const brand = this.words.title;
    document.title = open.title ? `${open.title} – ${brand}` : brand;
  }

  /** What has the focus: the number of a link or button of an entry. */
  place() {
    const item = document.activeElement?.closest("#conversations li");
    return {
      id: item?.dataset.id,
      n: item ? [...item.querySelectorAll(REACHABLE)].indexOf(document.activeElement) : -1,
    };
  }

  restorePlace({ id, n }) {
    for (const item of this.list.children) if (item.dataset.id === id) item.querySelectorAll(REACHABLE)[n]?.focus();
    const { id: owner } = this.menu.dataset;
    if (this.isMenuOf(owner)) this.optionsOf(owner)?.setAttribute("aria-expanded", "true");
  }

  isMenuOf(id) {
    return this.menu.dataset.id === id && this.menu.matches(":popover-open");
  }

  itemOf(id) {
    return [...this.list.children].find((each) => each.dataset.id === id);
  }

  optionsOf(id) {
    return this.itemOf(id)?.querySelector("button");
  }

  entry(conversation) {
    const item = document.createElement("li");
    item.dataset.id = conversation.id;
    const link = document.createElement("a");
    link.href = `#c=${conversation.id}`;
    link.dir = "auto";
    link.textContent = this.titleOf(conversation);
    link.title = link.textContent;
    if (conversation.id === this.current) link.setAttribute("aria-current", "page");
    if (conversation.pinned) link.prepend(this.sign("★", this.words.pinned));
    if (this.unread.has(conversation.id)) link.append(this.sign("●", this.words.unread));
    item.append(link);
    if (conversation.isNew) return item;
    let wasOpen = false; // the press of the button that closes the menu does not open it again
    const options = this.button("⋯", () => wasOpen || this.openMenu(conversation, options));
    options.addEventListener("pointerdown", () => (wasOpen = this.isMenuOf(conversation.id)));
    options.addEventListener("keydown", () => (wasOpen = false));
    options.setAttribute("aria-label", this.words.options.replace("{title}", this.titleOf(conversation)));
    options.setAttribute("aria-haspopup", "menu");
    options.setAttribute("aria-expanded", "false");
    item.append(options);
    return item;
  }

  /** Open the menu of a conversation below its button, or above where there is no room. */
  openMenu(conversation, options) {
    const { id, pinned } = conversation;
    this.menu.dataset.id = id;
    this.menu.setAttribute("aria-label", this.titleOf(conversation));
    const choices = [
      [this.words.rename, () => this.rename(id)],
      [pinned ? this.words.unpin : this.words.pin, () => this.change(id, { pinned: !pinned })],
      [this.words.share, () => openSharing(id, this.titleOf(conversation), this.words)],
      [this.words.export_markdown, () => save(`conversations/${id}/export?format=md`)],
      [this.words.export_json, () => save(`conversations/${id}/export?format=json`)],
      [this.words.delete, () => this.askToDelete(id)],
    ];
    const entries = choices.map(([label, action]) => {
      const entry = this.button(label, () => {
        this.menu.hidePopover();
        action();
      });
      entry.setAttribute("role", "menuitem");
      entry.tabIndex = -1;
      return entry;
    });
    this.menu.replaceChildren(...entries);
    this.menu.showPopover();
    const [at, { height, width }] = [options.getBoundingClientRect(), this.menu.getBoundingClientRect()];
    this.menu.style.left = `${Math.max(Math.min(at.right - width, innerWidth - width - 8), 8)}px`;
    this.menu.style.top = `${at.bottom + height > innerHeight ? at.top - height : at.bottom}px`;
    entries[0].focus();
  }

  /** Arrows, Home and End go through the menu; Tab leaves it. The browser closes it for Escape and a click outside. */
  menuKey(event) {
    const entries = [...this.menu.children];
    const last = entries.length - 1;
    const n = entries.indexOf(document.activeElement);
    const next = { ArrowDown: n === last ? 0 : n + 1, ArrowUp: n <= 0 ? last : n - 1, Home: 0, End: last }[event.key];
    if (next === undefined && event.key !== "Tab") return;
    event.preventDefault();
    if (event.key === "Tab") this.menu.hidePopover();
    else entries[next].focus();
  }

  deletedEntry(conversation) {
    const item = document.createElement("li");
    const title = document.createElement("span");
    title.dir = "auto";
    title.textContent = this.titleOf(conversation);
    const restore = this.button(this.words.restore, () => this.change(conversation.id, { deleted: false }));
    restore.setAttribute("aria-label", `${this.words.restore}: ${title.textContent}`);
    item.append(title, restore);
    return item;
  }

  sign(text, label) {
    const sign = document.createElement("span");
    sign.className = "sign";
    sign.textContent = text;
    sign.setAttribute("role", "img");
    sign.setAttribute("aria-label", label);
    return sign;
  }

  button(label, action) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = label;
    button.addEventListener("click", action);
    return button;
  }

  /** Let the title be typed in its place: Enter and leaving keep it, Escape does not. */
  rename(id) {
    const conversation = this.known.find((each) => each.id === id);
    const link = this.itemOf(id)?.querySelector("a");
    if (!conversation || !link) return;
    const field = document.createElement("input");
    field.value = this.titleOf(conversation);
    field.maxLength = 80;
    field.setAttribute("aria-label", this.words.rename);
    link.replaceWith(field);
    field.select();
    field.focus();
    let isOver = false; // taking the field away takes its focus, which ends it once more
    const end = (isKept) => {
      if (isOver) return;
      isOver = true;
      field.replaceWith(link);
      this.optionsOf(id)?.focus();
      this.draw(); // what has changed meanwhile
      const title = field.value.trim();
      if (isKept && title && title !== conversation.title) this.change(conversation.id, { title });
    };
    field.addEventListener("blur", () => end(true));
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (isComposing(event) || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault(); // or the options, which get the focus, open
      end(event.key === "Enter");
    });
  }

  /** Delete a conversation; where reminders were set in it, ask first what becomes of them. */
  async askToDelete(id) {
    const answer = await fetch("reminders", { cache: "no-store" }).catch(() => null);
    const { reminders } = answer?.ok ? await answer.json() : { reminders: [] };
    const set = reminders.filter(({ conversation }) => conversation === id);
    if (set.length === 0) {
      this.delete(id);
      return;
    }
    const dialog = document.getElementById("deleting");
    const choose = (name, act) => {
      document.getElementById(`deleting-${name}`).onclick = () => {
        dialog.close();
        act();
      };
    };
    choose("move", () => this.delete(id)); // when one is due, it comes in the first conversation
    choose("stop", () => {
      // Before the conversation is left, and with it its connection; what could not be sent deletes nothing.
      if (set.every((each) => this.onRun(`/reminders stop ${each.id}`))) this.delete(id);
    });
    choose("keep", () => this.optionsOf(id)?.focus());
    dialog.showModal();
  }

  async delete(id) {
    const wasOpen = id === this.current;
    const next = this.known.find((each) => each.id !== id && !each.deleted);
    if (wasOpen && next) this.open(next.id); // at once: what is typed next belongs there
    else if (wasOpen) this.begin();
    const opened = this.current;
    if (!(await this.change(id, { deleted: true }))) {
      if (wasOpen && this.current === opened) this.open(id);
      return;
    }
    document.getElementById("spoken").textContent = this.words.deleted_note;
    if (document.activeElement === document.body) document.getElementById("new-chat").focus(); // its button is gone
  }

  /** Change a conversation; true when the server has taken it. */
  async change(id, change) {
    const answer = await fetch(`conversations/${id}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(change),
    }).catch(() => null);
    await this.load();
    return Boolean(answer?.ok);
  }

  async search() {
    const query = this.find.value.trim();
    const turn = ++this.searches;
    const has = query.length > 1;
    if (!has) this.showHits(null);
    if (!has) return;
    const answer = await fetch(`search?${new URLSearchParams({ q: query })}`, { cache: "no-store" }).catch(() => null);
    if (turn !== this.searches) return; // more was typed meanwhile
    if (answer?.status === 429) this.timer = setTimeout(() => this.search(), SEARCH_AFTER);
    else this.showHits(answer?.ok ? await answer.json() : { hits: [], partial: false }, query);
  }

  showHits(found, query) {
    this.hits.hidden = !found;
    this.list.hidden = Boolean(found);
    if (!found) return;
    const titled = this.known.filter((each) => !each.deleted && matches(this.titleOf(each), query));
    const titles = titled.map((each) => this.hit(each, "", this.titleOf(each), each.at));
    const known = new Map(this.known.map((each) => [each.id, each]));
    const hits = found.hits.map((each) =>
      this.hit({ id: each.conversation }, each.turn, this.titleOf(known.get(each.conversation) ?? { id: each.conversation }), each.at, each.text),
    );
    this.hits.querySelector("ol").replaceChildren(...titles, ...hits);
    const count = titles.length + hits.length;
    const { find_none: none, find_some: some, find_more: more } = this.words;
    const words = count === 0 ? none : found.partial ? more : some;
    this.hits.querySelector("p").textContent = words.replace("{count}", count.toLocaleString(LOCALE));
  }

  hit({ id }, turn, title, at, text = "") {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `#c=${id}`;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      this.open(id, turn);
      if (NARROW.matches) this.show(false);
    });
    const [name, excerpt] = [document.createElement("strong"), document.createElement("span")];
    const when = document.createElement("time");
    when.dateTime = at;
    when.textContent = new Date(at).toLocaleDateString(LOCALE, { day: "numeric", month: "short", year: "numeric" });
    name.textContent = title;
    excerpt.textContent = text;
    name.dir = excerpt.dir = "auto";
    link.append(name, excerpt, when);
    item.append(link);
    return item;
  }
}

/** The group of a conversation in the list: today, yesterday, or a month. */
function dayOf({ at, isNew }) {
  const [now, used] = [new Date(), isNew ? new Date() : new Date(at)];
  const midnight = (time) => Date.UTC(time.getFullYear(), time.getMonth(), time.getDate());
  const days = Math.round((midnight(used) - midnight(now)) / 86_400_000);
  if (days < -1) return used.toLocaleDateString(LOCALE, { month: "long", year: "numeric" });
  const name = new Intl.RelativeTimeFormat(LOCALE, { numeric: "auto" }).format(Math.min(days, 0), "day");
  return name.charAt(0).toLocaleUpperCase(LOCALE) + name.slice(1);
}

function groupTitle(name) {
  const title = document.createElement("li");
  title.className = "group";
  title.textContent = name;
  return title;
}

/** Have the browser save what is at *address*. */
function save(address) {
  const link = document.createElement("a");
  link.href = address;
  link.download = "";
  link.click();
}

function inAddress() {
  return /^#c=([a-z0-9]{16})$/.exec(location.hash)?.[1] ?? FIRST;
}

function matches(title, query) {
  const text = title.toLocaleLowerCase(LOCALE);
  return query.toLocaleLowerCase(LOCALE).split(/\s+/).every((word) => text.includes(word));
}
