// The last conversations, for when there is no network: of the login that is in here, and of no other. They are erased
// with a logout, when the server says that the login has ended, when another one comes in, and when it has run out.

const home = new URL("./", document.baseURI);
const NAME = `parlour-offline ${home.pathname}`; // several pages may share an origin
const MOST = 10; // conversations
const MOST_BYTES = 100_000; // of one, and of the list
const MOST_LINES = 60; // of one
const KEPT = ["id", "turn", "role", "text", "at", "links", "message", "state", "sources"]; // a file has no address later
const WRITE_AFTER = 300; // milliseconds

export class Offline {
  constructor() {
    this.session = null; // of who is in; nothing is stored before that is known
    this.lines = new Map(); // by conversation, of this visit
    this.timers = new Map();
    this.erased = null; // the last erasure that this visit knows of, as the list names it
    this.writes = Promise.resolve(); // the last one
  }

  /** Note who is in; what is stored of another person, of another login, or of nobody, is erased. */
  begin({ who, login, until }) {
    const session = { who, login, until };
    if (!isSame(this.session, session)) this.drop();
    this.session = session;
    this.queue(async () => {
      if (!isSame(await this.get("session"), session)) await this.erase();
      await this.put("session", session);
    });
  }

  /**
   * Store the list of conversations, a text of JSON. Lines of conversations that it lacks or has as deleted go, and all
   * lines after an erasure: it may have been of their words. Return true if it was one of this visit.
   */
  keepList(text) {
    const list = JSON.parse(text);
    const { erased = "", conversations } = list;
    const isErased = this.erased !== null && this.erased !== erased;
    if (isErased) this.drop();
    this.erased = erased;
    for (const { id } of conversations.filter((each) => each.deleted)) this.dropLines(id);
    const left = new Set(conversations.filter((each) => !each.deleted).map((each) => each.id));
    this.change(async (cache) => {
      const isBefore = ((await this.get("erased")) ?? "") !== erased;
      for (const each of await this.conversations()) {
        if (isBefore || !left.has(each)) await cache.delete(address(`of/${each}`));
      }
      await this.put("erased", erased);
      if (bytes(text) <= MOST_BYTES) await this.put("list", list);
    });
    return isErased;
  }

  /** Store a conversation as the server has just told it. */
  keep(conversation, lines) {
    this.lines.set(conversation, lines.map(plain));
    this.plan(conversation);
  }

  /** Add a line to a conversation that is stored. */
  add(conversation, line) {
    const lines = this.lines.get(conversation);
    if (!lines) return;
    lines.push(plain(line));
    this.plan(conversation);
  }

  plan(conversation) {
    clearTimeout(this.timers.get(conversation));
    this.timers.set(conversation, setTimeout(() => this.write(conversation), WRITE_AFTER));
  }

  write(conversation) {
    let lines = this.lines.get(conversation).slice(-MOST_LINES);
    while (lines.length > 0 && bytes(JSON.stringify(lines)) > MOST_BYTES) lines = lines.slice(1);
    this.lines.set(conversation, lines);
    const { erased } = this;
    this.change(async (cache) => {
      if (erased !== null && ((await this.get("erased")) ?? "") !== erased) return; // another tab knows of an erasure
      await cache.delete(address(`of/${conversation}`)); // it is the newest of the store then, whichever tab wrote the others
      await this.put(`of/${conversation}`, lines);
      const all = await this.conversations();
      for (const old of all.slice(0, -MOST)) await cache.delete(address(`of/${old}`));
    });
  }

  /** Return the session, the list as a text, and the lines of *conversation*; null if nothing may be shown. */
  read(conversation) {
    return this.queue(async () => {
      const session = await this.get("session");
      if (!session) return null;
      if (session.until && new Date(session.until) <= new Date()) {
        await this.erase();
        return null;
      }
      const latest = (await this.conversations()).at(-1);
      const list = (await this.get("list")) ?? { conversations: [] };
      return { session, latest, list: JSON.stringify(list), lines: (await this.get(`of/${conversation}`)) ?? [] };
    });
  }

  /** Erase everything. */
  forget() {
    this.session = null;
    this.drop();
    return this.queue(() => this.erase());
  }

  /** Drop what this visit has of conversations, and has not written yet. */
  drop() {
    this.erased = null;
    for (const conversation of [...this.lines.keys()]) this.dropLines(conversation);
  }

  dropLines(conversation) {
    clearTimeout(this.timers.get(conversation));
    this.timers.delete(conversation);
    this.lines.delete(conversation);
  }

  /** The conversations that are stored, the one written last at the end. */
  async conversations() {
    const keys = await (await caches.open(NAME)).keys();
    return keys.map(({ url }) => url).filter((url) => url.startsWith(address("of/"))).map((url) => url.slice(address("of/").length));
  }

  async erase() {
    await caches.delete(NAME);
  }

  async get(name) {
    const cache = await caches.open(NAME);
    return (await cache.match(address(name)))?.json();
  }

  async put(name, value) {
    const cache = await caches.open(NAME);
    await cache.put(address(name), new Response(JSON.stringify(value), { headers: { "Content-Type": "application/json" } }));
  }

  /** Queue *work* on the store, unless that is of another login by then, or of none: another tab may have ended ours. */
  change(work) {
    const { session } = this;
    if (!session) return;
    this.queue(async () => {
      if (isSame(await this.get("session"), session)) await work(await caches.open(NAME));
    });
  }

  /** Queue *work* behind that of every tab: none can write between another's look at the session and its erasure. */
  queue(work) {
    if (!("caches" in window && "locks" in navigator)) return Promise.resolve(null); // an address without TLS
    this.writes = navigator.locks.request(NAME, work).catch(() => null); // storage is full or forbidden
    return this.writes;
  }
}

const address = (name) => new URL(`offline/${name}`, home).href;
const isSame = (one, other) => one?.who === other.who && one.login === other.login;
const bytes = (text) => new TextEncoder().encode(text).length;
const plain = (line) => Object.fromEntries(KEPT.filter((name) => line[name] !== undefined).map((name) => [name, line[name]]));
