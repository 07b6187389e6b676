// Versions of what was said: a message that was said anew hides the earlier one with all that followed it.
// Each version has its own sequel; arrows below the message step through them. The bot goes on from the latest.

export class Versions {
  constructor(words) {
    this.words = words;
    this.forget();
  }

  forget() {
    this.groups = new Map(); // id of a first version -> elements of its versions, in order
    this.roots = new Map(); // id of a version -> id of the first one
    this.chosen = new Map(); // id of a first version -> which one is shown, if not the latest
  }

  /** Return the id that a further version of the message *id* replaces: the latest one's. */
  latest(id) {
    return this.groups.get(this.rootOf(id))?.at(-1).dataset.message ?? id;
  }

  rootOf(id) {
    return this.roots.get(id) ?? id;
  }

  /** Show one version of each message of *list*. Costs little while none was said anew. */
  arrange(list) {
    this.list = list;
    const others = list.querySelectorAll("[data-replaces]");
    if (others.length === 0 && this.groups.size === 0) return;
    for (const stepper of list.querySelectorAll(".versions")) stepper.remove();
    this.groups.clear();
    this.roots.clear();
    for (const line of others) {
      const root = this.rootOf(line.dataset.replaces);
      this.roots.set(line.dataset.message, root);
      this.groups.set(root, [...(this.groups.get(root) ?? []), line]);
    }
    this.items = [...list.children];
    const groups = [];
    for (const [root, heads] of this.groups) {
      const first = this.items.findIndex((item) => item.dataset.message === root);
      if (first >= 0) heads.unshift(this.items[first]);
      groups.push({ root, heads, isWhole: first >= 0, places: heads.map((head) => this.items.indexOf(head)) });
    }
    for (const item of this.items) item.hidden = false;
    this.show(groups, 0, this.items.length, false);
  }

  /** Show the items *from* up to *to*; those before the first message with versions, then one of these. */
  show(groups, from, to, isPast) {
    const inside = groups.filter(({ places }) => places[0] >= from && places[0] < to);
    // An earlier version that is not loaded yet stands above: what is here before the next one belongs to it.
    const group = inside.find(({ isWhole }) => !isWhole) ?? inside.sort((a, b) => a.places[0] - b.places[0])[0];
    const before = !group ? to : group.isWhole ? group.places[0] : from;
    for (const item of this.items.slice(from, before)) item.classList.toggle("past", isPast);
    if (!group) return;
    const starts = group.places.map((place) => this.beginning(place, from));
    if (!group.isWhole) starts.unshift(from);
    const last = starts.length - 1;
    const n = Math.min(this.chosen.get(group.root) ?? last, last);
    for (const [other, start] of starts.entries()) {
      if (other === n) continue;
      for (const item of this.items.slice(start, starts[other + 1] ?? to)) {
        item.hidden = true;
        item.version = { root: group.root, n: other };
      }
    }
    const head = group.heads[group.isWhole ? n : n - 1];
    head?.querySelector(".meta").prepend(this.stepper(group.root, n, last));
    const rest = groups.filter((each) => each !== group);
    this.show(rest, starts[n], starts[n + 1] ?? to, isPast || n < last);
  }

  /** Return where the version begins whose message is at *place*: the heading of its day belongs to it. */
  beginning(place, from) {
    let start = place;
    while (start > from && this.items[start - 1].classList.contains("day")) start -= 1;
    return start;
  }

  stepper(root, n, last) {
    const box = document.createElement("span");
    box.className = "versions";
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", this.words.version.replace("{n}", n + 1).replace("{count}", last + 1));
    const number = document.createElement("span");
    number.textContent = `${n + 1}/${last + 1}`;
    box.append(this.step("‹", this.words.version_before, root, n - 1, last), number);
    box.append(this.step("›", this.words.version_after, root, n + 1, last));
    return box;
  }

  step(sign, name, root, n, last) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = sign;
    button.setAttribute("aria-label", name);
    button.disabled = n < 0 || n > last;
    button.addEventListener("click", () => {
      this.choose(root, n, last);
      const head = this.groups.get(root)?.find((each) => !each.hidden);
      const buttons = [...(head?.querySelectorAll(".versions button") ?? [])];
      (buttons.find((each) => each.textContent === sign && !each.disabled) ?? buttons.find((each) => !each.disabled))?.focus();
    });
    return button;
  }

  choose(root, n, last) {
    if (n === last) this.chosen.delete(root);
    else this.chosen.set(root, n);
    this.arrange(this.list);
  }

  /** Show the versions that *line* is in. */
  reveal(line) {
    for (let most = this.groups.size; line.hidden && line.version && most > 0; most -= 1) {
      this.chosen.set(line.version.root, line.version.n);
      this.arrange(this.list);
    }
  }

  /** Show the latest version of everything: what is said next belongs to it. */
  toLatest() {
    if (this.chosen.size === 0) return;
    this.chosen.clear();
    this.arrange(this.list);
  }
}
