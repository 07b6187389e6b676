// The connection: one WebSocket, asked for again with growing pauses until it stands.

const FIRST_PAUSE = 400; // milliseconds
const LONGEST_PAUSE = 15000;
const PING_EVERY = 25000;
const PONG_WITHIN = 8000;

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
      const answer = await fetch("session", { cache: "no-store" });
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
    if (!this.send({ type: "ping" })) return;
    clearTimeout(this.deadline);
    this.deadline = setTimeout(() => this.reset(), PONG_WITHIN);
  }
}
