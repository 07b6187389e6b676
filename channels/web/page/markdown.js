// Markdown to DOM nodes: markdown-it parses, DOMPurify passes what ALLOWED lists, highlight.js colours code, KaTeX draws formulas.
// HTML in a message stays text, nothing is loaded from elsewhere, and a link shows where it leads. Of an answer that
// untrusted text may have influenced, the server names the addresses that may be links; the others are code.

import markdownIt from "./vendor/markdown-it.js";
import "./vendor/purify.js";

const { DOMPurify } = globalThis;
const DEEPEST = 24; // nested blocks or marks; anything deeper is shown as written
const LONGEST_COLOURED = 20_000; // characters of a code block
const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a blockquote br code em h2 h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["class", "href", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};
// Written as models write them; a dollar sign before a blank or a number ends none: "$5 and $6" is money.
const FORMULA = /\\\(([^]{1,1000}?)\\\)|\\\[([^]{1,1000}?)\\\]|\$\$([^$]{1,1000})\$\$|\$(?!\s)([^$\n`]{1,1000}?)(?<!\s)\$(?!\d)/y;
const MATHML = {
  USE_PROFILES: { mathMl: true },
  ADD_TAGS: ["semantics"],
  ADD_FORBID_CONTENTS: ["annotation"], // the formula as it was written
  FORBID_ATTR: ["style", "href"],
  RETURN_DOM_FRAGMENT: true,
};
const COLOURED = { ...ALLOWED, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] };

const markdown = markdownIt({ html: false, linkify: true, breaks: true, maxNesting: DEEPEST }).disable("code");
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });
markdown.validateLink = (address) => ALLOWED.ALLOWED_URI_REGEXP.test(address);
// An image is never loaded: its address could carry what was written here to somebody else.
markdown.renderer.rules.image = (tokens, at, options, { words }) => {
  const { escapeHtml } = markdown.utils;
  const text = words.image.replace("{text}", tokens[at].content);
  return `<a href="${escapeHtml(tokens[at].attrGet("src"))}">${escapeHtml(text)}</a>`;
};
markdown.inline.ruler.before("escape", "formula", (state, isSilent) => {
  FORMULA.lastIndex = state.pos;
  const found = FORMULA.exec(state.src);
  if (!found || FORMULA.lastIndex > state.posMax) return false;
  const [written, inline, display, block, short] = found;
  if (!isSilent) {
    const token = state.push("code_inline", "code", 0);
    token.content = (inline ?? display ?? block ?? short).trim();
    token.attrs = [["class", display || block ? "formula display" : "formula"]];
  }
  state.pos += written.length;
  return true;
});
// As in gateway/text/markdown_tree.py: marks beside Chinese, Japanese and Korean text need no blanks, a star between
// letters or digits is a product, and a line that is not indented ends a list.
const CJK =
  /[\u1100-\u11ff\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u3130-\u318f\u31a0-\u31bf\u31f0-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\u{20000}-\u{3ffff}]/u;
const SIGN = /[\p{P}\p{S}]/u;
const { scanDelims } = markdown.inline.State.prototype;
markdown.inline.State.prototype.scanDelims = function (start, canSplitWord) {
  const scanned = scanDelims.call(this, start, canSplitWord);
  const before = [...this.src.slice(Math.max(start - 2, 0), start)].at(-1) ?? " ";
  const end = start + scanned.length;
  const after = end < this.posMax ? String.fromCodePoint(this.src.codePointAt(end)) : " ";
  const isProduct = /[a-z0-9)\]]/i.test(before) && /[a-z0-9([]/i.test(after);
  const isPower = scanned.length === 2 && (/[0-9]/.test(before) || /[0-9]/.test(after));
  if (this.src[start] === "*" && isProduct && (scanned.length === 1 || isPower)) {
    return { ...scanned, can_open: false, can_close: false };
  }
  if (!canSplitWord || !(CJK.test(before) || CJK.test(after))) return scanned;
  const isForeign = (sign) => SIGN.test(sign) && !CJK.test(sign);
  const endsWord = (sign) => /\s/.test(sign) || SIGN.test(sign) || CJK.test(sign);
  return {
    ...scanned,
    can_open: !/\s/.test(after) && (!isForeign(after) || endsWord(before)),
    can_close: !/\s/.test(before) && (!isForeign(before) || endsWord(after)),
  };
};
markdown.block.ruler.before(
  "list",
  "list_end",
  (state, start, end, isSilent) => isSilent && state.sCount[start] >= 0 && state.sCount[start] < state.blkIndent,
  { alt: ["paragraph"] },
);
markdown.core.ruler.push("page", ({ tokens, env, Token }) => {
  for (const [at, token] of tokens.entries()) {
    if (token.type === "inline" && tokens[at - 2]?.type === "list_item_open") markTask(tokens[at - 2], token.children[0]);
    if (env.links && token.type === "inline") token.children = restricted(token.children, env, Token);
    if (token.type.startsWith("heading_")) token.tag = `h${Math.min(Number(token.tag[1]) + 1, 6)}`;
    // The page's policy allows no inline style.
    const style = token.attrGet("style");
    if (style) token.attrs = [["class", style.endsWith("right") ? "end" : style.endsWith("center") ? "center" : "start"]];
  }
});

/** Draw the box of a task, if an item's *text* begins with one. */
function markTask(item, text) {
  const [box, state] = /^\[([ x])\] /i.exec(text?.content ?? "") ?? [];
  if (!box || text.type !== "text") return;
  text.content = `${state === " " ? "☐" : "☑"} ${text.content.slice(box.length)}`;
  item.attrJoin("class", "task");
}

/** Return inline tokens in which what leads to an address that is not in `links` is code beside its label. */
function restricted(tokens, { links, words }, Token) {
  const kept = [];
  const open = []; // of each link: its address, and where its label begins
  const leaf = (type, content) => kept.push(Object.assign(new Token(type, type === "text" ? "" : "code", 0), { content }));
  const code = (label, href) => {
    if (comparable(label) === comparable(href)) kept.splice(kept.length - 1, 1);
    else leaf("text", " (");
    leaf("code_inline", href);
    if (comparable(label) !== comparable(href)) leaf("text", ")");
  };
  for (const token of tokens) {
    const href = token.attrGet(token.type === "image" ? "src" : "href");
    if (token.type === "link_open" && !links.includes(comparable(href))) open.push({ href, at: kept.length });
    else if (token.type === "link_open") open.push(null), kept.push(token);
    else if (token.type === "link_close" && open.at(-1)) {
      const { href: address, at } = open.pop();
      code(kept.length - at === 1 ? kept[at].content : "", address);
    } else if (token.type === "image" && !links.includes(comparable(href))) {
      leaf("text", words.image.replace("{text}", token.content));
      code("", href);
    } else {
      if (token.type === "link_close") open.pop();
      kept.push(token);
    }
  }
  return kept;
}

/** Return `address` in the form of `gateway.text.comparable_address`. */
export function comparable(address) {
  const rest = address.trim().replace(/^(?:https?:\/\/|mailto:)/i, "");
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(rest)) return markdown.normalizeLink(rest);
  const authority = rest.split(/[/?#]/, 1)[0];
  const host = authority.lastIndexOf("@") + 1;
  const lower = authority.slice(0, host) + authority.slice(host).toLowerCase() + rest.slice(authority.length);
  return markdown.normalizeLink(`http://${lower}`).replace(/^http:\/\//, "").replace(/\/$/, "");
}

/**
 * Show `text` in `target`; if `links` are given, no other address is a link. Blocks that did not change keep their
 * nodes, so a stream draws only its last block.
 */
export function show(target, text, words, links) {
  const blocks = render(text, { words, links });
  const old = target.shownBlocks ?? [];
  let same = 0;
  while (same < old.length && old[same] === blocks[same]) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  if (same < blocks.length) target.append(draw(blocks.slice(same).join(""), words)); // in one go: each costs a document
  target.shownBlocks = blocks;
}

/** Return the HTML of each block of `text`; each is one element. */
function render(text, env) {
  const blocks = [];
  let block = [];
  let depth = 0;
  for (const token of markdown.parse(text, env)) {
    block.push(token);
    depth += token.nesting;
    if (depth === 0) {
      blocks.push(markdown.renderer.render(block, markdown.options, env).trimEnd());
      block = [];
    }
  }
  return blocks;
}

function draw(html, words) {
  const fragment = DOMPurify.sanitize(html, ALLOWED);
  for (const link of fragment.querySelectorAll("a")) finishLink(link);
  for (const code of fragment.querySelectorAll("pre > code")) finishCode(code, words);
  for (const code of fragment.querySelectorAll("code.formula")) drawFormula(code);
  for (const table of fragment.querySelectorAll("table")) finishTable(table);
  return fragment;
}

/** True for a link to the card "Connect a model" of this page. */
export function isCardLink(link) {
  return link.hash === "#connect" && link.href.split("#")[0] === location.href.split("#")[0];
}

export function finishLink(link) {
  if (isCardLink(link)) return; // it opens the card, here
  link.target = "_blank";
  link.rel = "noreferrer noopener nofollow";
  link.referrerPolicy = "no-referrer";
  const shown = URL.canParse(link.textContent.trim()) ? new URL(link.textContent.trim()) : null;
  const isPlain = shown?.host === link.host && shown.pathname === link.pathname && !shown.username && !shown.password;
  if (!isPlain) link.after(element("bdi", "host", link.protocol === "mailto:" ? link.pathname : link.host));
}

/** A button that copies what *text* returns, and says whether it could. */
export function copyButton(name, words, text) {
  const button = element("button", name, words.copy);
  button.type = "button";
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? words.copied : words.copy_failed;
    setTimeout(() => (button.textContent = words.copy), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Absent over plain HTTP: what is selected in a field can be copied there.
    const focused = document.activeElement;
    const field = element("textarea", "spoken");
    field.value = text;
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return isCopied;
  }
}

function finishCode(code, words) {
  const language = code.className.replace("language-", "").slice(0, 30);
  const text = code.textContent.replace(/\n$/, "");
  code.textContent = text;
  const copy = copyButton("quiet", words, () => text);
  const bar = element("div", "bar");
  bar.append(element("span", "", language), copy);
  const pre = code.parentElement;
  pre.tabIndex = 0;
  const box = element("div", "code");
  pre.replaceWith(box);
  box.append(bar, pre);
  if (language && text.length <= LONGEST_COLOURED) colour(code, language, text);
}

let loading; // the highlighter

/** Load the highlighter, not before the text around the first code is drawn; null without a connection. */
async function loadHighlighter() {
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
  return import("./vendor/highlight.js").then((loaded) => loaded.default, () => null);
}

/** Colour a code block. The highlighter is loaded with the first one; without a connection, code stays plain. */
async function colour(code, language, text) {
  const highlighter = await (loading ??= loadHighlighter());
  if (!highlighter) loading = undefined;
  if (!highlighter?.getLanguage(language)) return;
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  code.replaceChildren(DOMPurify.sanitize(value, COLOURED));
}

/** Draw a formula as MathML. KaTeX is loaded with the first one; what it cannot read stays code. */
async function drawFormula(code) {
  await import("./vendor/katex.js").catch(() => null);
  const displayMode = code.classList.contains("display");
  try {
    // No \href and no \includegraphics; macros and sizes are bounded.
    const options = { output: "mathml", displayMode, trust: false, strict: "ignore", maxSize: 20, maxExpand: 200 };
    const html = globalThis.katex.renderToString(code.textContent, options);
    const formula = element("span", code.className);
    if (displayMode) formula.tabIndex = 0; // it can be scrolled
    formula.append(DOMPurify.sanitize(html, MATHML));
    code.replaceWith(formula);
  } catch {
    code.classList.remove("formula");
  }
}

function finishTable(table) {
  const scroll = element("div", "scroll");
  scroll.tabIndex = 0;
  table.replaceWith(scroll);
  scroll.append(table);
}

function element(tag, name, text = "") {
  const node = document.createElement(tag);
  node.className = name;
  node.textContent = text;
  return node;
}
