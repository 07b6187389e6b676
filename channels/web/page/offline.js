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
    this.writes = Promise.resolve(); // one after the other, or a conversation could be written behind `forget`
  }

  /** Note who is in; what is stored of another person, or of another login, is erased. */
  begin({ who, login, until }) {
    const session = { who, login, until };
    this.queue(async () => {
      const stored = await this.get("session");
      if (stored && (stored.who !== who || stored.login !== login)) await this.erase();
      await this.put("session", session);
    });
    this.session = session;
  }

  /** Store the list of conversations, a text of JSON. */
  keepList(list) {
    if (this.session && bytes(list) <= MOST_BYTES) this.queue(() => this.put("list", JSON.parse(list)));
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
    if (!this.session) return;
    let lines = this.lines.get(conversation).slice(-MOST_LINES);
    while (lines.length > 0 && bytes(JSON.stringify(lines)) > MOST_BYTES) lines = lines.slice(1);
    this.lines.set(conversation, lines);
    this.queue(async () => {
      const cache = await caches.open(NAME);
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
      if (!session || (session.until && new Date(session.until) <= new Date())) return null;
      const latest = (await this.conversations()).at(-1);
      const list = (await this.get("list")) ?? { conversations: [] };
      return { session, latest, list: JSON.stringify(list), lines: (await this.get(`of/${conversation}`)) ?? [] };
    });
  }

  /** Erase everything. */
  forget() {
    this.session = null;
    this.lines.clear();
    for (const timer of this.timers.values()) clearTimeout(timer);
    return this.queue(() => this.erase());
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

  queue(work) {
    if (!("caches" in window)) return Promise.resolve(null); // an address without TLS
    this.writes = this.writes.then(work).catch(() => null); // storage is full or forbidden
    return this.writes;
  }
}

const address = (name) => new URL(`offline/${name}`, home).href;
const bytes = (text) => new TextEncoder().encode(text).length;
const plain = (line) => Object.fromEntries(KEPT.filter((name) => line[name] !== undefined).map((name) => [name, line[name]]));
