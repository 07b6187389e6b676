// The connection: one WebSocket, asked for again with growing pauses until it stands.

const FIRST_PAUSE = 400; // milliseconds
const LONGEST_PAUSE = 15000;
const PING_EVERY = 8000;
const PONG_WITHIN = 4000;
const CONNECTED_WITHIN = 10000;
const HISTORY_WITHIN = 60000; // a page of it may be large, and the line slow

/** Keep a connection; calls `on.frame(frame)`, `on.state("connecting" | "online" | "offline" | "login")`, `on.session(session)`. */
export class Wire {
  constructor(on) {
    this.on = on;
    this.socket = null;
    this.hasHistory = false; // of the connection
    this.conversation = "main"; // the one that the connection is for
    this.pause = FIRST_PAUSE;
    this.timer = 0;
    this.busy = false;
    addEventListener("online", () => this.hurry());
    // A page of this machine is reached without a network, too: it is connected again at once.
    addEventListener("offline", () => this.drop());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.hurry();
    });
    setInterval(() => this.ping(), PING_EVERY);
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  send(frame) {
    if (!this.isOpen) return false;
    this.socket.send(JSON.stringify(frame));
    return true;
  }

  /** Connect now; asks first who we are, since a refused WebSocket does not say why. */
  async connect() {
    if (this.busy || this.socket) return;
    this.busy = true;
    clearTimeout(this.timer);
    this.on.state("connecting");
    try {
      const answer = await fetch("session", { cache: "no-store", signal: AbortSignal.timeout(CONNECTED_WITHIN) });
      if (answer.status === 401) {
        this.on.state("login");
        return;
      }
      if (!answer.ok) throw new Error(`session: ${answer.status}`);
      this.on.session(await answer.json());
      this.open();
    } catch {
      this.again();
    } finally {
      this.busy = false;
    }
  }

  /** Drop the connection and make a new one. */
  reset() {
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.pause = FIRST_PAUSE;
    this.connect();
  }

  /** Connect to another conversation of the same person. */
  turnTo(conversation) {
    this.conversation = conversation;
    const { socket } = this;
    if (!socket) return; // whoever connects next asks for it
    this.socket = null;
    clearTimeout(this.deadline);
    socket.close();
    this.open();
  }

  open() {
    const address = new URL(`ws?conversation=${this.conversation}`, document.baseURI);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    this.socket = socket;
    this.hasHistory = false;
    this.expect(CONNECTED_WITHIN);
    socket.addEventListener("open", () => {
      if (socket === this.socket) this.expect(HISTORY_WITHIN);
    });
    socket.addEventListener("message", (event) => {
      if (socket !== this.socket) return;
      clearTimeout(this.deadline);
      const frame = JSON.parse(event.data);
      if (frame.type === "history") {
        this.hasHistory = true;
        this.pause = FIRST_PAUSE;
        this.on.state("online");
      }
      if (frame.type !== "pong") this.on.frame(frame);
    });
    socket.addEventListener("close", () => {
      if (socket !== this.socket) return;
      this.socket = null;
      this.again();
    });
  }

  /** Give the connection up; another one is tried soon. */
  drop() {
    const { socket } = this;
    if (!socket) return;
    this.socket = null;
    clearTimeout(this.deadline);
    socket.close();
    this.again();
  }

  again() {
    this.on.state("offline");
    clearTimeout(this.timer);
    // Spread out, or all windows knock at once when the gateway is back.
    this.timer = setTimeout(() => this.connect(), this.pause * (0.75 + Math.random() / 2));
    this.pause = Math.min(this.pause * 1.7, LONGEST_PAUSE);
  }

  hurry() {
    if (this.socket) {
      this.ping();
      return;
    }
    this.pause = FIRST_PAUSE;
    this.connect();
  }

  /** A connection can be dead without anybody having said so, on phones above all. */
  ping() {
    if (!this.hasHistory || !this.send({ type: "ping" })) return;
    this.expect(PONG_WITHIN + this.socket.bufferedAmount); // a thousand bytes a second are the slowest line
  }

  /** Make a new connection unless something arrives within *time* milliseconds. */
  expect(time) {
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => this.reset(), time);
  }
}
