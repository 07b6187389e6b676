// Files for the next message: chosen or dropped, handed over at once, named by the message that follows.

import { sizeOf } from "./chat.js";
import { keepPicture } from "./pictures.js";

const MOST = 10;
const KEPT_FOR = 24 * 3600 * 1000; // milliseconds; the gateway keeps them for two days, and a message may wait for one

export class Attachments {
  constructor(words, on) {
    this.words = words;
    this.on = on; // changed(), trouble(line), login()
    this.list = document.getElementById("attached");
    this.chooser = document.getElementById("files");
    this.drop = document.getElementById("drop");
    this.files = []; // { name, size, token, at, element, stop }
    this.hasLost = false; // files of a draft that cannot be sent again; not reported yet
    this.aside = new Map(); // conversation -> files that were being handed over when another one was opened
    document.getElementById("attach").addEventListener("click", () => this.chooser.click());
    this.chooser.addEventListener("change", () => {
      this.add(this.chooser.files);
      this.chooser.value = "";
    });
    this.listen();
    addEventListener("beforeunload", (event) => {
      if (this.isBusy || this.aside.size > 0) event.preventDefault(); // they would be lost: the browser asks
    });
  }

  get isEmpty() {
    return this.files.length === 0;
  }

  get isBusy() {
    return this.files.some((file) => !file.token);
  }

  /** The files that can be sent, as a draft keeps them. */
  get ready() {
    return this.files.filter(({ token }) => token).map(({ name, size, token, at }) => ({ name, size, token, at }));
  }

  /** Return what was handed over, and begin anew. */
  take() {
    const taken = this.ready;
    this.clear();
    this.show();
    return taken;
  }

  clear() {
    for (const file of this.files) file.element.remove();
    this.files = [];
  }

  /** Empty the list for another conversation; what is still handed over for *conversation* goes on. */
  setAside(conversation) {
    if (this.isBusy) this.aside.set(conversation, this.files.filter((file) => !file.token));
    this.clear();
  }

  /** Show the files of a draft of *conversation*, and those that were set aside there. */
  restore(conversation, kept = []) {
    const left = kept.filter(({ at }) => Date.now() - at < KEPT_FOR);
    this.files = left.map((file) => ({ ...file, stop: new AbortController() }));
    for (const file of this.files) {
      file.element = this.element(file);
      file.element.dataset.state = "ready";
    }
    for (const file of this.aside.get(conversation) ?? []) {
      this.list.append(file.element);
      this.files.push(file);
    }
    this.aside.delete(conversation);
    this.show();
    this.hasLost ||= left.length < kept.length;
  }

  /** Return the line about files that are not kept any more, once; "" if there are none. */
  takeLoss() {
    const { hasLost } = this;
    this.hasLost = false;
    return hasLost ? this.words.upload_gone : "";
  }

  /** Stop and forget everything, since somebody else comes; a draft is shown next. */
  forget() {
    for (const file of [...this.files, ...[...this.aside.values()].flat()]) file.stop.abort();
    this.aside.clear();
    this.clear();
  }

  listen() {
    const carries = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
      if (!carries(event)) return;
      event.preventDefault();
      this.drop.hidden = false;
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) this.drop.hidden = true;
    });
    addEventListener("drop", (event) => {
      this.drop.hidden = true;
      if (!carries(event)) return;
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
    document.getElementById("text").addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length) this.add(event.clipboardData.files);
    });
  }

  /** Hand over files; a recording is what the person says, not a file from elsewhere. */
  add(chosen, isRecording = false) {
    for (const data of chosen) {
      if (this.files.length >= MOST) {
        this.on.trouble(this.words.upload_many);
        break;
      }
      if (data.size > Number(this.chooser.dataset.largest)) {
        this.on.trouble(this.words.upload_large);
        continue;
      }
      const file = { name: data.name, size: data.size, token: "", stop: new AbortController() };
      file.element = this.element(file);
      this.files.push(file);
      this.send(file, data, isRecording);
    }
    this.show();
  }

  async send(file, data, isRecording) {
    try {
      const answer = await fetch("files", {
        method: "POST",
        headers: {
          "Content-Type": data.type || "application/octet-stream",
          "X-File-Name": encodeURIComponent(data.name.toWellFormed?.() ?? data.name),
          ...(isRecording && { "X-Recording": "1" }),
        },
        body: data,
        signal: file.stop.signal,
      });
      if (answer.status === 401) this.on.login();
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.line ?? this.words.upload_failed);
      Object.assign(file, told, { at: Date.now() });
      keepPicture(file.token, data);
      file.element.dataset.state = "ready";
    } catch (error) {
      if (!this.has(file)) return;
      this.remove(file);
      // What the network itself says is not for people.
      this.on.trouble(error.constructor === Error ? error.message : this.words.upload_failed);
    }
    this.show();
  }

  has(file) {
    return [this.files, ...this.aside.values()].some((files) => files.includes(file));
  }

  remove(file) {
    this.files = this.files.filter((other) => other !== file);
    for (const [conversation, files] of this.aside) {
      const left = files.filter((other) => other !== file);
      if (left.length) this.aside.set(conversation, left);
      else this.aside.delete(conversation);
    }
    file.stop.abort();
    file.element.remove();
    this.show();
  }

  show() {
    this.list.hidden = this.isEmpty;
    this.on.changed();
  }

  element(file) {
    const item = document.createElement("li");
    item.className = "file";
    item.dataset.state = "sending";
    const size = document.createElement("small");
    size.textContent = sizeOf(file.size);
    const out = document.createElement("button");
    out.type = "button";
    out.className = "quiet";
    out.textContent = "×";
    out.setAttribute("aria-label", this.words.attach_remove.replace("{name}", file.name));
    out.addEventListener("click", () => this.remove(file));
    item.append(file.name, " ", size, out);
    this.list.append(item);
    return item;
  }
}
