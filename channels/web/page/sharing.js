// Sharing one conversation: links that anybody can read, made, copied and withdrawn here.

import { LOCALE } from "./chat.js";
import { copyButton } from "./markdown.js";

/** Open the dialog for the conversation *id*. */
export function openSharing(id, title, words) {
  const dialog = document.getElementById("sharing");
  const [trouble, box, list] = [".trouble", ".address", "ul"].map((each) => dialog.querySelector(each));
  const address = box.querySelector("input");

  async function load() {
    const answer = await fetch(`conversations/${id}/links`, { cache: "no-store" }).catch(() => null);
    const { links } = answer?.ok ? await answer.json() : { links: [] };
    if (!answer?.ok) trouble.textContent = words.panel_failed;
    list.replaceChildren(...links.map(entry));
  }

  function entry({ id: link, until }) {
    const [item, text, button] = ["li", "span", "button"].map((tag) => document.createElement(tag));
    const time = new Date(until).toLocaleString(LOCALE, { dateStyle: "medium", timeStyle: "short" });
    text.textContent = words.share_until.replace("{date}", time);
    Object.assign(button, { type: "button", className: "quiet", textContent: words.share_withdraw });
    button.setAttribute("aria-label", `${words.share_withdraw}: ${text.textContent}`);
    button.addEventListener("click", async () => {
      const answer = await fetch(`links/${link}/withdraw`, { method: "POST" }).catch(() => null);
      trouble.textContent = answer?.ok ? "" : words.panel_failed;
      box.hidden = true;
      load();
    });
    item.append(text, " ", button);
    return item;
  }

  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault();
    const answer = await fetch(`conversations/${id}/links`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ days: Number(dialog.querySelector("select").value) }),
    }).catch(() => null);
    const made = await answer?.json().catch(() => null);
    trouble.textContent = answer?.ok ? "" : (made?.line ?? words.panel_failed);
    box.hidden = !answer?.ok;
    if (!answer?.ok) return;
    address.value = new URL(made.address, document.baseURI).href;
    box.querySelector("button")?.remove();
    box.append(copyButton("copy", words, () => address.value));
    address.select();
    load();
  };
  dialog.querySelector("[value=close]").onclick = () => dialog.close();
  dialog.querySelector("#sharing-of").textContent = title;
  trouble.textContent = "";
  box.hidden = true;
  list.replaceChildren();
  dialog.showModal();
  load();
}
