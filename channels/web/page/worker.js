// The service worker: notifications of answers, and the page itself where there is no network.
// It stores files of the page alone. What people said is stored by the page (offline.js), which knows whose it is.

const MOST_FILES = 60; // of the page, in two versions at most
const ASKED_WITHIN = 5000; // milliseconds
const home = new URL("./", self.location).href;
const SHELL = `parlour-shell ${home}`; // several pages may share an origin

self.addEventListener("install", (event) => {
  event.waitUntil(self.skipWaiting());
});

self.addEventListener("activate", (event) => {
  event.waitUntil(self.clients.claim());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== self.location.origin) return;
  if (request.mode === "navigate" && url.href.split(/[?#]/)[0] === home) event.respondWith(page(request));
  else if (url.href.startsWith(`${home}assets/`)) event.respondWith(asset(request));
});

/** The page from the network, or as it was at its last visit. It has no words of people. */
async function page(request) {
  const cache = await caches.open(SHELL);
  try {
    const answer = await fetch(request);
    if (answer.ok) await cache.put(home, answer.clone());
    return answer;
  } catch (error) {
    const stored = await cache.match(home);
    if (stored) return stored;
    throw error;
  }
}

/** A file of the page: its address has its version, so what is stored is never out of date. */
async function asset(request) {
  const cache = await caches.open(SHELL);
  const stored = await cache.match(request);
  if (stored) return stored;
  const answer = await fetch(request);
  if (answer.ok && /\/assets\/[0-9a-f]{16}\//.test(request.url)) {
    await cache.put(request, answer.clone());
    const files = (await cache.keys()).filter(({ url }) => url !== home);
    for (const old of files.slice(0, Math.max(0, files.length - MOST_FILES))) await cache.delete(old);
  }
  return answer;
}

self.addEventListener("push", (event) => {
  event.waitUntil(announce(event.data));
});

/** Show what came. A browser takes the right to notify from pages that show nothing, so there is always something. */
async function announce(data) {
  let notice = {};
  try {
    notice = data.json();
  } catch {
    // Not ours: it is shown without its words.
  }
  if (await hasEnded()) notice = {};
  const { title = "Parlour", body = "", tag = "answer", conversation = "main" } = notice;
  await self.registration.showNotification(String(title), {
    body: String(body),
    tag: String(tag),
    icon: `${home}assets/icon-192.png`,
    badge: `${home}assets/icon-192.png`,
    data: { conversation: String(conversation) },
  });
}

/** True when the server says that nobody is in: a notification on its way was for a login that has ended. */
async function hasEnded() {
  const options = { cache: "no-store", signal: AbortSignal.timeout(ASKED_WITHIN) };
  const answer = await fetch(`${home}session`, options).catch(() => null);
  return answer?.status === 401;
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(open(event.notification.data?.conversation ?? "main"));
});

/** Open the conversation, in a window that there is already if possible. */
async function open(conversation) {
  if (!/^(main|[a-z0-9]{16})$/.test(conversation)) return;
  const windows = await self.clients.matchAll({ type: "window" });
  const shown = windows.find(({ url }) => url.split(/[?#]/)[0] === home);
  if (!shown) {
    await self.clients.openWindow(`${home}#c=${conversation}`);
    return;
  }
  shown.postMessage({ conversation });
  await shown.focus();
}
