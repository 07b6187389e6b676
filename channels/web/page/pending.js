// What was typed and is not stored yet. It outlives the tab; the id is the message's for good, so that
// sending it again is never a second message. Other tabs share the list: read, change, write each time.

export class Pending {
  constructor(who) {
    this.conversation = "main"; // the one whose messages are meant
    this.name = `parlour.pending.${new URL(".", document.baseURI).pathname}.${who}`;
  }

  /** The messages of the open conversation. */
  all() {
    return this.read().filter(({ conversation = "main" }) => conversation === this.conversation);
  }

  read() {
    try {
      const stored = JSON.parse(localStorage.getItem(this.name) ?? "[]");
      return Array.isArray(stored) ? stored : [];
    } catch {
      return [];
    }
  }

  add(text, files = [], replaces = "") {
    const { conversation } = this;
    const message = { id: newId(), text, files, at: new Date().toISOString(), conversation, replaces };
    this.write([...this.read(), message]);
    return message;
  }

  remove(id) {
    const left = this.read().filter((message) => message.id !== id);
    this.write(left);
  }

  write(messages) {
    try {
      if (messages.length) localStorage.setItem(this.name, JSON.stringify(messages));
      else localStorage.removeItem(this.name);
    } catch {
      // Storage is full or forbidden: this tab still has the message on its screen.
    }
  }
}

/** What was typed in each conversation and not sent: { text, files }, and what is being edited as { edited, replaces }. */
export class Drafts {
  constructor() {
    this.kept = new Map(); // conversation -> draft; also where nothing can be stored
    this.who = "";
  }

  /** Read the drafts of *who*; return false if somebody else's were open. */
  open(who) {
    const isSame = ["", who].includes(this.who);
    if (!isSame) this.kept.clear();
    this.who = who;
    return isSame;
  }

  get(conversation) {
    return this.kept.get(conversation) ?? this.stored(conversation) ?? { text: "" };
  }

  set(conversation, draft) {
    this.kept.set(conversation, draft);
    if (!this.who) return;
    try {
      if (draft.text || draft.replaces || draft.files.length) localStorage.setItem(this.name(conversation), JSON.stringify(draft));
      else localStorage.removeItem(this.name(conversation));
    } catch {
      // Storage is full or forbidden: this tab still has the draft.
    }
  }

  /** Forget every draft of the person who leaves. */
  clear() {
    this.kept.clear();
    for (const name of Object.keys(localStorage)) if (name.startsWith(this.name(""))) localStorage.removeItem(name);
    this.who = "";
  }

  name(conversation) {
    return `parlour.draft.${new URL(".", document.baseURI).pathname}.${this.who}/${conversation}`;
  }

  stored(conversation) {
    try {
      return this.who ? JSON.parse(localStorage.getItem(this.name(conversation))) : null;
    } catch {
      return null;
    }
  }
}

/** An id for something this page sends; the same one when it is sent again. */
export function newId() {
  if (crypto.randomUUID) return crypto.randomUUID();
  // Only pages of https or localhost have randomUUID.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
