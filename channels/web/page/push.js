// Notifications: this browser is added and withdrawn in the settings, where all of a person's browsers are listed.

const NAME = 60; // characters
const policy = window.trustedTypes?.createPolicy("worker", { createScriptURL: (url) => url });

/** Start the service worker. Where the page has no TLS and is not of this machine, browsers have none. */
export async function startWorker(onOpen) {
  if (!("serviceWorker" in navigator)) return;
  navigator.serviceWorker.addEventListener("message", ({ data }) => {
    if (typeof data?.conversation === "string") onOpen(data.conversation);
  });
  const url = new URL("worker.js", document.baseURI).href;
  await navigator.serviceWorker.register(policy ? policy.createScriptURL(url) : url).catch(() => null);
}

/** This browser's subscription, or null. */
async function current() {
  const registration = await navigator.serviceWorker?.getRegistration();
  return (await registration?.pushManager?.getSubscription()) ?? null;
}

/** End this browser's subscription: before the login ends, or once it has ended. */
export async function endPush() {
  const subscription = await current().catch(() => null);
  await subscription?.unsubscribe().catch(() => null);
}

/** The section of the settings. */
export class PushSettings {
  constructor(words) {
    this.words = words;
    this.who = "";
    this.section = document.getElementById("settings-push");
    this.list = this.section.querySelector("ul");
    this.line = this.section.querySelector("[role=status]");
    this.button = this.section.querySelector("button");
    this.box = this.section.querySelector("input");
    this.button.addEventListener("click", () => this.add());
    this.box.addEventListener("change", () => this.choose());
  }

  /**
   * Note who is in. Their own subscription is added again, because its push service may have given it another address;
   * another person's ends.
   */
  async begin(who) {
    this.who = who;
    const chosen = choice();
    this.box.checked = chosen.who === who && chosen.shows_text;
    if (chosen.who !== who) {
      await endPush();
      return;
    }
    const subscription = await current().catch(() => null);
    if (subscription && Notification.permission === "granted") {
      await tell(subscription, chosen.shows_text, "").catch(() => null);
    }
  }

  async show(line = "") {
    const answer = await fetch("push", { cache: "no-store" }).catch(() => null);
    const { key = "", browsers = [] } = answer?.ok ? await answer.json() : {};
    this.key = key;
    this.section.hidden = key === "";
    const subscription = await current().catch(() => null);
    const here = subscription ? await idOf(subscription.endpoint) : "";
    const isOn = browsers.some(({ id }) => id === here);
    const canPush = "PushManager" in window && "Notification" in window;
    this.button.hidden = isOn || !canPush;
    this.box.parentElement.hidden = !isOn;
    this.line.textContent = line || (canPush ? "" : this.words.push_impossible);
    this.list.replaceChildren(...browsers.map((each) => this.entry(each, each.id === here)));
  }

  entry({ id, name, at }, isHere) {
    const [item, text, button] = ["li", "span", "button"].map((tag) => document.createElement(tag));
    const day = new Date(at).toLocaleDateString(this.words.language);
    text.textContent = [name, isHere ? this.words.push_here : "", day].filter(Boolean).join(" · ");
    Object.assign(button, { type: "button", className: "quiet", textContent: this.words.push_withdraw });
    button.setAttribute("aria-label", `${this.words.push_withdraw}: ${name}`);
    button.addEventListener("click", async () => {
      button.disabled = true;
      if (isHere) await endPush();
      const answer = await fetch(`push/${encodeURIComponent(id)}`, { method: "POST" }).catch(() => null);
      await this.show(answer?.ok ? "" : this.words.panel_failed);
    });
    item.append(text, button);
    return item;
  }

  async add() {
    this.button.disabled = true;
    await this.show(await this.subscribe());
    this.button.disabled = false;
  }

  /** Ask the browser, then tell the server; return the line to show. */
  async subscribe() {
    try {
      if ((await Notification.requestPermission()) !== "granted") return this.words.push_denied;
      store(this.who, this.box.checked);
      const registration = await navigator.serviceWorker.ready;
      const known = await registration.pushManager.getSubscription();
      if (known && bytesToText(known.options.applicationServerKey) !== this.key) await known.unsubscribe();
      const options = { userVisibleOnly: true, applicationServerKey: textToBytes(this.key) };
      return await tell(await registration.pushManager.subscribe(options), this.box.checked, this.words.push_bad);
    } catch {
      return this.words.push_failed;
    }
  }

  async choose() {
    store(this.who, this.box.checked);
    const subscription = await current().catch(() => null);
    if (subscription) await this.show(await tell(subscription, this.box.checked, this.words.push_bad).catch(() => this.words.panel_failed));
  }
}

/** Add or renew *subscription* at the server; return the line to show, "" if all is well. */
async function tell(subscription, shows_text, otherwise) {
  const { endpoint, keys } = subscription.toJSON();
  const answer = await fetch("push", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ endpoint, keys, shows_text, name: browserName() }),
  });
  return answer.ok ? "" : ((await answer.json()).line ?? otherwise);
}

/** What people would call this browser. */
function browserName() {
  const agent = navigator.userAgent;
  const first = (pairs) => pairs.find(([sign]) => agent.includes(sign))?.[1];
  const browser = first([["Edg/", "Edge"], ["OPR/", "Opera"], ["Firefox/", "Firefox"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]]);
  const system = first([["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS", "macOS"], ["Linux", "Linux"]]);
  return [browser ?? "Browser", system].filter(Boolean).join(", ").slice(0, NAME);
}

async function idOf(endpoint) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(endpoint));
  return bytesToText(digest.slice(0, 16));
}

function bytesToText(buffer) {
  const text = btoa(String.fromCharCode(...new Uint8Array(buffer ?? new ArrayBuffer(0))));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function textToBytes(text) {
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
}

const CHOICE = `parlour.push.${new URL(".", document.baseURI).pathname}`;

/** Who switched notifications on in this browser, and with words or not. */
function choice() {
  try {
    return JSON.parse(localStorage.getItem(CHOICE)) ?? {};
  } catch {
    return {};
  }
}

function store(who, shows_text) {
  try {
    localStorage.setItem(CHOICE, JSON.stringify({ who, shows_text }));
  } catch {
    // Storage is full or forbidden: notifications end with this visit, for nobody knows whose they are.
  }
}
