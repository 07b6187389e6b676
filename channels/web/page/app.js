// The page: words, composer and login around the conversation and its connection.

import { Attachments } from "./attachments.js";
import { Chat, LOCALE } from "./chat.js";
import { ModelCard } from "./connect.js";
import { Conversations } from "./conversations.js";
import { CommandMenu, isComposing, listenForHelp } from "./help.js";
import { Offline } from "./offline.js";
import { Panels } from "./panels.js";
import { Drafts, Pending } from "./pending.js";
import { forgetPictures } from "./pictures.js";
import { endPush, PushSettings, startWorker } from "./push.js";
import { ModelChoice, listenForSettings } from "./settings.js";
import { Recorder } from "./recorder.js";
import { Wire } from "./wire.js";

const words = JSON.parse(document.getElementById("words").textContent);
const by = (id) => document.getElementById(id);
const text = by("text");
const LONGEST = Number(text.getAttribute("maxlength"));
const LOGGED_IN = "parlour.logged-in";
const AGAIN_AFTER = 4000; // milliseconds, when the server could not store a message

const chat = new Chat(words, {
  say: submit,
  edit,
  press: (press) => wire.send({ type: "press", ...press }),
  earlier: (before) => wire.send({ type: "look", before }),
  conversation: () => wire.conversation,
});
const conversations = new Conversations(words, turnTo, (turn) => chat.seek(turn), run, (list) => {
  if (offline.keepList(list)) wire.send({ type: "look" }); // words were erased: they stand in the lines shown, too
});
const offline = new Offline();
const pushSettings = new PushSettings(words);
const panels = new Panels(words, run);
const drafts = new Drafts();
const menu = new CommandMenu(words, typed);
const attachments = new Attachments(words, { changed: typed, trouble: showTrouble, login: showLogin });
const card = new ModelCard(words, () => wire.hurry());
const models = new ModelChoice(words, run);
const recorder = new Recorder(words, {
  recorded: (file) => attachments.add([file], true),
  trouble: showTrouble,
  ended: () => text.focus(),
});
let brought = codeInAddress();
let isLoggedIn = takeLogin(); // just now: people are told as whom, because a link may bring somebody else's code
let pending = null;
let again = 0;
let isLocaleTold = false;
let isLanguageChanged = false; // the page is in another language once the answer is there
let stopping = ""; // the press of Stop, then the turn that answers it
let isTakenBack = false; // with the next history: what a Stop has ended unanswered
let replaced = ""; // the message that is being edited

const wire = new Wire({
  state: showState,
  session(session) {
    offline.begin(session);
    pending = new Pending(session.who);
    conversations.start(session.latest);
    pending.conversation = wire.conversation = conversations.current;
    if (!drafts.open(session.who)) {
      text.value = "";
      attachments.forget();
    }
    if (text.value === "" && attachments.isEmpty) showDraft();
    menu.allow(session.commands);
    models.allow(session.commands);
    recorder.allow(session.can_record);
    card.allow(session);
    conversations.load();
    if (session.needs_locale) tellLocale();
    pushSettings.begin(session.who);
    by("leave").hidden = !session.can_leave;
    by("leave").title = session.who;
    by("as-whom").textContent = words.logged_in.replace("{who}", session.who);
    by("as-whom").hidden = !isLoggedIn;
    if (by("login").open) by("login").close();
  },
  frame: (frame) => handlers[frame.type]?.(frame),
});

const handlers = {
  history({ lines, before }) {
    const left = isTakenBack ? chat.unansweredIn(lines) : [];
    isTakenBack = false;
    chat.restore(lines, before);
    offline.keep(wire.conversation, lines);
    takeBack(left);
    showTrouble(attachments.takeLoss());
    resend();
    showActivity(false);
    chat.seek(conversations.takeSought());
  },
  earlier({ lines, before }) {
    chat.prepend(lines, before);
  },
  accepted({ id, turn }) {
    isLoggedIn = false;
    by("as-whom").hidden = true;
    if (id === stopping) stopping = turn;
    if (chat.pressTaken(id, turn)) return;
    const sent = pending.all().find((each) => each.id === id);
    if (sent) offline.add(wire.conversation, { ...sent, turn, role: "user", at: new Date().toISOString() });
    pending.remove(id);
    chat.accepted(id);
    showTrouble("");
  },
  said(message) {
    chat.mark(chat.say(message), "accepted");
    pending.remove(message.id);
    welcome();
    chat.follow();
  },
  rejected({ id, line }) {
    if (chat.unpressed(id)) {
      showTrouble(line);
      return;
    }
    pending.remove(id);
    chat.refused(id, line);
  },
  later({ id, line }) {
    showTrouble(line);
    if (chat.unpressed(id)) return;
    clearTimeout(again);
    again = setTimeout(resend, AGAIN_AFTER);
  },
  trouble({ line }) {
    showTrouble(line);
  },
  preview(frame) {
    chat.preview(frame);
    welcome();
  },
  message(frame) {
    chat.message(frame);
    if (!frame.replaces) {
      const role = frame.kind === "notice" ? "notice" : "assistant";
      offline.add(wire.conversation, { ...frame, id: frame.part, role, at: new Date().toISOString() });
    }
    welcome();
    panels.refresh();
    if (frame.kind === "notice") {
      models.read();
      conversations.load(); // it may be about an erasure
    }
    if (isLanguageChanged && frame.kind === "notice") reload();
    // A Stop is answered with a line if it ended what waited.
    if (stopping && frame.turn === stopping) {
      stopping = "";
      isTakenBack = true;
      wire.send({ type: "look" });
    }
    if (chat.hasEnded(frame)) wire.send({ type: "look" }); // the history knows where the new conversation begins
  },
  conversations() {
    conversations.load();
  },
  news({ conversation }) {
    conversations.news(conversation);
  },
  activity({ on, text, turn, steps }) {
    showActivity(on, text);
    if (steps) {
      chat.steps(turn, steps);
      welcome();
    }
  },
};

// Saying something.

/** Say something; with *replaces*, in place of that message and all that followed it. */
function submit(saying, files = [], replaces = "") {
  if (!pending || (saying.trim() === "" && files.length === 0 && !replaces)) return;
  if (/^\/stop$/i.test(saying.trim())) {
    stop();
    return;
  }
  if (saying.length > LONGEST) {
    showTrouble(words.long.replace("{limit}", LONGEST.toLocaleString(LOCALE)));
    return;
  }
  chat.versions.toLatest();
  const message = pending.add(saying.trim(), files, replaces);
  chat.say(message);
  welcome();
  chat.toEnd();
  // Messages from before the connection come first: `resend` sends them, and this one behind them.
  if (wire.hasHistory && !again) send(message);
}

function send({ id, text, files = [], replaces = "" }) {
  wire.send({ type: "say", id, text, files: files.map((file) => file.token), replaces });
  wire.ping(); // a connection that has died is noticed now, and not at the next ping
}

/** Put a message into the composer; what is sent then replaces *replaces*, if there is any. */
function edit(saying, replaces) {
  keepDraft();
  replaced = replaces;
  by("editing").hidden = !replaces;
  text.value = saying;
  keepDraft();
  fit();
  text.focus();
}

/** Leave the editing of a message: what was typed before is in the composer again. */
function endEdit() {
  if (!replaced) return;
  replaced = "";
  by("editing").hidden = true;
  text.value = drafts.get(wire.conversation).text;
  keepDraft();
  fit();
}

/** Keep what stands in the composer, and what stood in it before a message was edited. */
function keepDraft() {
  const { text: before } = drafts.get(wire.conversation);
  const edit = { text: before, edited: text.value, replaces: replaced };
  const { ready: files } = attachments;
  drafts.set(wire.conversation, { ...(replaced ? edit : { text: text.value }), files });
}

/** Show what was typed and attached in the open conversation and not sent. */
function showDraft() {
  const { text: before, edited, replaces = "", files } = drafts.get(wire.conversation);
  replaced = replaces;
  by("editing").hidden = !replaces;
  text.value = replaces ? edited : before;
  attachments.restore(wire.conversation, files);
}

by("edit-cancel").addEventListener("click", () => {
  endEdit();
  text.focus();
});

/** Run a command of the page's own controls: it is no message, and only its result stands in the conversation. */
function run(command) {
  const isSent = chat.run(command);
  if (!isSent) showTrouble(words.state_offline);
  return isSent;
}

/** Send what is not stored yet, in order; what the history shows is stored. */
function resend() {
  clearTimeout(again);
  again = 0;
  for (const message of pending.all()) {
    if (chat.hasAccepted(message.id)) {
      pending.remove(message.id);
      continue;
    }
    chat.say(message);
    send(message);
  }
  welcome();
  chat.follow();
}

by("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (attachments.isBusy) return;
  submit(text.value, attachments.take(), replaced);
  if (replaced) endEdit();
  else text.value = "";
  keepDraft();
  fit();
  text.focus();
});

text.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && replaced && !isComposing(event)) endEdit();
  if (event.key === "ArrowUp" && text.value === "" && chat.editLast()) event.preventDefault();
  // While an input method composes, Enter chooses a word.
  if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
  event.preventDefault();
  if (!by("send").disabled) by("form").requestSubmit();
});

text.addEventListener("input", typed);

function typed() {
  keepDraft();
  fit();
}

function fit() {
  const isEmpty = text.value.trim() === "" && attachments.isEmpty;
  by("send").disabled = isEmpty || attachments.isBusy || !pending;
  text.classList.toggle("command", text.value.startsWith("/"));
  text.rows = Math.min(8, text.value.split("\n").length);
  menu.draw();
}

for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => {
    submit(chip.textContent);
    text.focus();
  });
}

by("stop").addEventListener("click", stop);

/** End the running answer, and what waits behind it. */
function stop() {
  stopping = run("/stop");
}

/** Put what a Stop has ended unanswered back into the composer: it is in no history. */
function takeBack(left) {
  if (left.length === 0) return;
  keepDraft();
  const draft = drafts.get(wire.conversation);
  const text = [...left.map((each) => each.text), draft.text].filter(Boolean).join("\n\n");
  drafts.set(wire.conversation, { ...draft, text, files: [...left.flatMap((each) => each.files), ...draft.files] });
  attachments.setAside(wire.conversation);
  attachments.hasLost ||= left.some((each) => each.hasLost);
  showDraft();
}

// What stands around the conversation.

/** Show another conversation: its history comes with its connection, what was typed stays where it was typed. */
function turnTo(conversation) {
  keepDraft();
  attachments.setAside(wire.conversation);
  if (pending) pending.conversation = conversation;
  chat.restore([]);
  showTrouble("");
  showActivity(false);
  wire.turnTo(conversation);
  if (!wire.isOpen) showOffline();
  showDraft();
}

function welcome() {
  by("welcome").hidden = !chat.isEmpty;
}

function showState(state) {
  const known = state === "login" ? "offline" : state;
  by("state").dataset.state = known;
  by("state-text").textContent = words[`state_${known}`];
  if (state === "login") {
    offline.forget();
    endPush();
    if (!pending) forgetShown(); // it was read from this browser, before the server was reached
    showLogin();
  }
  if (state === "offline" && !pending) showOffline();
  if (state !== "online") showActivity(false);
}

/** Show what this browser has of the open conversation, while the server is not reached. */
async function showOffline() {
  const stored = await offline.read(conversations.current);
  if (!stored || wire.isOpen || (pending && !chat.isEmpty)) return;
  conversations.take(stored.list);
  const { lines } = conversations.isChosen || !stored.latest ? stored : ((await offline.read(stored.latest)) ?? stored);
  if (!conversations.isChosen && stored.latest) conversations.start(stored.latest);
  wire.conversation = conversations.current;
  chat.restore(lines);
  welcome();
}

function forgetShown() {
  conversations.forget();
  chat.restore([]);
}

function showActivity(on, status = "") {
  by("activity").hidden = !on;
  by("activity-text").textContent = status || words.thinking;
  chat.follow();
}

function showTrouble(line) {
  by("trouble").textContent = line;
  by("trouble").hidden = line === "";
}

// Coming in and going.

function showLogin() {
  if (!by("login").open) by("login").showModal();
  if (brought) by("code").value = brought;
  by("code").focus();
}

/** Take the code that a link brought along out of the address; it is typed for people, and entering it is theirs. */
function codeInAddress() {
  const found = /^#code=([0-9A-Za-z-]{8,24})$/.exec(location.hash);
  if (location.hash.startsWith("#code=")) history.replaceState(null, "", location.pathname);
  return found ? found[1] : "";
}

by("login").addEventListener("cancel", (event) => event.preventDefault());

by("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { line = "", language } = await enter(by("code").value);
  by("login-trouble").textContent = line;
  by("login-trouble").hidden = line === "";
  if (line !== "") {
    by("code").select();
    return;
  }
  brought = "";
  isLoggedIn = true;
  if (language !== words.language) {
    reload();
    return;
  }
  by("code").value = "";
  by("login").close();
  wire.reset();
});

async function enter(code) {
  try {
    const answer = await post("login", { code });
    if (answer.ok) return { language: answer.headers.get("Content-Language") };
    return { line: (await answer.json()).line ?? words.login_failed };
  } catch {
    return { line: words.login_failed };
  }
}

/** Load the page in another language; as whom one is logged in is still told. */
function reload() {
  try {
    if (isLoggedIn) sessionStorage.setItem(LOGGED_IN, "yes");
  } catch {
    // Storage is forbidden: the header's button still names the person.
  }
  location.reload();
}

/** Return true if the page was loaded again right after a login. */
function takeLogin() {
  try {
    const isStored = sessionStorage.getItem(LOGGED_IN) !== null;
    sessionStorage.removeItem(LOGGED_IN);
    return isStored;
  } catch {
    return false;
  }
}

by("leave").addEventListener("click", async () => {
  await endPush();
  try {
    const answer = await post("logout", {});
    if (!answer.ok) return;
  } catch {
    return;
  }
  await offline.forget();
  by("leave").hidden = true;
  isLoggedIn = false;
  by("as-whom").hidden = true;
  recorder.allow(false);
  models.allow([]);
  card.allow({});
  pending?.write([]);
  conversations.forget();
  panels.close();
  forgetPictures();
  attachments.forget();
  drafts.clear();
  showDraft();
  by("spoken").textContent = "";
  chat.restore([]);
  fit();
  wire.reset();
});

/** Tell the browser's languages and time zone, once: a person's own choices are kept. */
async function tellLocale() {
  if (isLocaleTold) return;
  isLocaleTold = true;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
  const answer = await post("locale", { languages: [...navigator.languages], zone }).catch(() => null);
  const { language } = answer?.ok ? await answer.json() : words;
  if (language !== words.language) reload();
}

function post(path, body) {
  return fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

listenForHelp();
startWorker((conversation) => conversations.open(conversation));
listenForSettings(words, (command) => {
  isLanguageChanged = command.startsWith("/language");
  run(command);
});
by("settings-open").addEventListener("click", () => pushSettings.show());
fit();
wire.conversation = conversations.current;
wire.connect();
text.focus();
