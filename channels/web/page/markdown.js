// Markdown to DOM nodes. Text stays text: no markup is ever parsed from a string, nothing is loaded,
// and a link shows where it really goes. Every scan goes forward once, so that no text is slow.

const DEEPEST = 12; // nested quotes and lists; what is deeper is shown as written
const DEEPEST_INLINE = 24;
const LONGEST_LINK = 2000;
const PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&nbsp;": "\u00a0" };

/** Show `text` in `target`; blocks that did not change keep their nodes, so a stream costs its last block. */
export function show(target, text, words) {
  const blocks = parse(text.split("\n"), 0);
  const old = target.shownBlocks ?? [];
  let same = 0;
  while (same < old.length && same < blocks.length && old[same] === blocks[same].raw) same += 1;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of blocks.slice(same)) target.append(draw(block, words));
  target.shownBlocks = blocks.map((block) => block.raw);
}

// Blocks.

function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const block = take(lines, at, depth);
    block.raw = block.type + "\n" + lines.slice(at, block.end).join("\n");
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

function take(lines, at, depth) {
  const line = lines[at];
  return (
    fence(lines, at) ??
    heading(line, at) ??
    (isRule(line) ? { type: "rule", end: at + 1 } : null) ??
    (depth < DEEPEST ? quote(lines, at, depth) ?? list(lines, at, depth) : null) ??
    table(lines, at) ??
    paragraph(lines, at, depth)
  );
}

function fence(lines, at) {
  const opening = fenceOf(lines[at]);
  if (!opening) return null;
  const content = [];
  let end = at + 1;
  while (end < lines.length) {
    const closing = fenceOf(lines[end]);
    if (closing && closing.mark === opening.mark && closing.length >= opening.length && closing.info === "") {
      return { type: "code", language: opening.info, text: content.join("\n"), end: end + 1 };
    }
    content.push(unindent(lines[end], opening.indent));
    end += 1;
  }
  return { type: "code", language: opening.info, text: content.join("\n"), end };
}

function fenceOf(line) {
  const indent = indentOf(line);
  const mark = line[indent];
  if (indent > 3 || (mark !== "`" && mark !== "~")) return null;
  let length = 0;
  while (line[indent + length] === mark) length += 1;
  const info = line.slice(indent + length).trim();
  if (length < 3 || (mark === "`" && info.includes("`"))) return null;
  return { indent, mark, length, info };
}

function heading(line, at) {
  const indent = indentOf(line);
  let level = 0;
  while (line[indent + level] === "#") level += 1;
  const next = line[indent + level];
  if (indent > 3 || level < 1 || level > 6 || (next !== undefined && next !== " " && next !== "\t")) return null;
  let text = line.slice(indent + level).trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end -= 1;
  if (end === 0 || text[end - 1] === " ") text = text.slice(0, end).trim();
  return { type: "heading", level, text, end: at + 1 };
}

function isRule(line) {
  const marks = line.replaceAll(" ", "").replaceAll("\t", "");
  if (indentOf(line) > 3 || marks.length < 3 || !"-*_".includes(marks[0])) return false;
  return marks === marks[0].repeat(marks.length);
}

function quote(lines, at, depth) {
  const inner = [];
  let end = at;
  while (end < lines.length && lines[end].trimStart().startsWith(">") && indentOf(lines[end]) <= 3) {
    const line = lines[end].trimStart().slice(1);
    inner.push(line.startsWith(" ") ? line.slice(1) : line);
    end += 1;
  }
  return end === at ? null : { type: "quote", blocks: parse(inner, depth + 1), end };
}

function list(lines, at, depth) {
  const first = marker(lines[at]);
  if (!first) return null;
  const items = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const mark = marker(lines[end]);
    if (!mark || mark.kind !== first.kind || mark.indent > first.indent + 3 || isRule(lines[end])) break;
    const item = [lines[end].slice(mark.content)];
    let next = end + 1;
    while (next < lines.length) {
      const line = lines[next];
      if (line.trim() === "") {
        const after = lines[next + 1];
        if (after === undefined || after.trim() === "" || indentOf(after) < mark.content) break;
      } else if (indentOf(line) < mark.content && (marker(line) || startsBlock(line) || item.at(-1).trim() === "")) {
        break;
      }
      item.push(unindent(line, mark.content));
      next += 1;
    }
    items.push(parse(item, depth + 1));
    end = next;
    if (end + 1 < lines.length && lines[end].trim() === "" && marker(lines[end + 1])?.kind === first.kind) {
      loose = true;
      end += 1;
    }
  }
  return { type: "list", ordered: first.ordered, start: first.start, items, loose, end };
}

function marker(line) {
  const found = /^( {0,12})(?:([-*+])|(\d{1,9})([.)]))( {1,4}|\t|$)/.exec(line);
  if (!found) return null;
  const ordered = found[3] !== undefined;
  return {
    indent: found[1].length,
    content: found[0].length + (found[5] === "" ? 1 : 0),
    ordered,
    start: ordered ? Number(found[3]) : 0,
    kind: ordered ? found[4] : found[2],
  };
}

function table(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !isDelimiter(lines[at + 1])) return null;
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "end") : ""));
  if (head.length !== align.length) return null;
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) {
    rows.push(cells(lines[end]).slice(0, head.length));
    end += 1;
  }
  return { type: "table", head, align, rows, end };
}

function isDelimiter(line) {
  return line.includes("-") && line.includes("|") && /^[-:| \t]+$/.test(line);
}

function cells(line) {
  const row = line.trim();
  const found = [];
  let cell = "";
  for (let at = row.startsWith("|") ? 1 : 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (row[at] === "|") {
      found.push(cell.trim());
      cell = "";
    } else {
      cell += row[at];
    }
  }
  if (cell.trim() !== "" || !row.endsWith("|")) found.push(cell.trim());
  return found;
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !(depth < DEEPEST && startsBlock(lines[end]))) end += 1;
  return { type: "paragraph", text: lines.slice(at, end).join("\n"), end };
}

function startsBlock(line) {
  const trimmed = line.trimStart();
  return Boolean(fenceOf(line) || heading(line, 0) || trimmed.startsWith(">") || isRule(line) || marker(line));
}

function indentOf(line) {
  let indent = 0;
  while (line[indent] === " " || line[indent] === "\t") indent += 1;
  return indent;
}

function unindent(line, most) {
  return line.slice(Math.min(indentOf(line), most));
}

// Drawing blocks.

function draw(block, words) {
  switch (block.type) {
    case "code":
      return drawCode(block, words);
    case "heading":
      return inline(element(`h${Math.min(block.level + 1, 6)}`), block.text, words);
    case "rule":
      return element("hr");
    case "quote":
      return withBlocks(element("blockquote"), block.blocks, words);
    case "list":
      return drawList(block, words);
    case "table":
      return drawTable(block, words);
    default:
      return inline(element("p"), block.text, words);
  }
}

function withBlocks(parent, blocks, words) {
  parent.append(...blocks.map((block) => draw(block, words)));
  return parent;
}

function drawCode(block, words) {
  const box = element("div", "code");
  const bar = element("div", "bar");
  const label = element("span", "", block.language.split(" ")[0].slice(0, 30));
  const copy = element("button", "quiet", words.copy);
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(block.text);
    copy.textContent = words.copied;
    setTimeout(() => (copy.textContent = words.copy), 1500);
  });
  bar.append(label, copy);
  const pre = element("pre");
  pre.tabIndex = 0;
  pre.append(element("code", "", block.text));
  box.append(bar, pre);
  return box;
}

function drawList(block, words) {
  const list = element(block.ordered ? "ol" : "ul");
  if (block.ordered && block.start !== 1) list.start = block.start;
  for (const blocks of block.items) {
    const item = element("li");
    const [first, ...rest] = blocks;
    if (!block.loose && first?.type === "paragraph") {
      withBlocks(inline(item, first.text, words), rest, words);
    } else {
      withBlocks(item, blocks, words);
    }
    list.append(item);
  }
  return list;
}

function drawTable(block, words) {
  const table = element("table");
  const row = (names, tag) => {
    const line = element("tr");
    names.forEach((text, column) => {
      const cell = inline(element(tag), text, words);
      if (block.align[column]) cell.className = block.align[column];
      line.append(cell);
    });
    return line;
  };
  const head = element("thead");
  head.append(row(block.head, "th"));
  const body = element("tbody");
  body.append(...block.rows.map((names) => row(names, "td")));
  table.append(head, body);
  const scroll = element("div", "scroll");
  scroll.tabIndex = 0;
  scroll.append(table);
  return scroll;
}

function element(tag, name = "", text = "") {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text;
  return node;
}

// Inline: one pass makes tokens, matched delimiters become open and close tokens, then nodes.

function inline(parent, text, words) {
  build(parent, tokens(text), words);
  return parent;
}

function tokens(text) {
  const out = [];
  const openers = { "*": [], _: [], "~": [] };
  const brackets = [];
  const ticks = tickRuns(text);
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) out.push({ text: plain });
    plain = "";
  };
  while (at < text.length) {
    const char = text[at];
    if (char === "\\" && PUNCTUATION.includes(text[at + 1] ?? "\n")) {
      plain += text[at + 1];
      at += 2;
    } else if (char === "`") {
      const length = runLength(text, at, "`");
      const end = ticks.next(length, at + length);
      if (end < 0) {
        plain += "`".repeat(length);
        at += length;
      } else {
        flush();
        out.push({ code: unpad(text.slice(at + length, end).replaceAll("\n", " ")) });
        at = end + length;
      }
    } else if (char === "\n") {
      plain = plain.trimEnd();
      flush();
      out.push({ line: true });
      at += 1;
      while (text[at] === " ") at += 1;
    } else if (char === "*" || char === "_" || char === "~") {
      const length = runLength(text, at, char);
      if (char === "~" && length !== 2) {
        plain += char.repeat(length);
      } else {
        flush();
        emphasis(out, openers, brackets, char, length, text[at - 1] ?? " ", text[at + length] ?? " ");
      }
      at += length;
    } else if (char === "[" || (char === "!" && text[at + 1] === "[")) {
      flush();
      const image = char === "!";
      brackets.push({ at: out.length, image });
      out.push({ text: image ? "![" : "[" });
      at += image ? 2 : 1;
    } else if (char === "]") {
      const opener = brackets.pop();
      const target = opener && text[at + 1] === "(" ? destination(text, at + 2) : null;
      if (target) {
        flush();
        closeLink(out, openers, brackets, opener, target.href);
        at = target.end;
      } else {
        plain += "]";
        at += 1;
      }
    } else if (char === "<") {
      const link = angleLink(text, at);
      if (link) {
        flush();
        out.push({ href: link.href, auto: link.href });
        at = link.end;
      } else {
        plain += "<";
        at += 1;
      }
    } else if (char === "h" && !isWord(text[at - 1]) && (text.startsWith("https://", at) || text.startsWith("http://", at))) {
      const href = bareLink(text, at);
      flush();
      out.push({ href, auto: href });
      at += href.length;
    } else if (char === "&") {
      const semicolon = text.slice(at, at + 7).indexOf(";");
      const known = semicolon > 0 ? ENTITIES[text.slice(at, at + semicolon + 1)] : undefined;
      plain += known ?? "&";
      at += known === undefined ? 1 : semicolon + 1;
    } else {
      plain += char;
      at += 1;
    }
  }
  flush();
  return out;
}

function runLength(text, at, char) {
  let length = 1;
  while (text[at + length] === char) length += 1;
  return length;
}

/** Where runs of backticks stand, by length, so that looking for the closing run never scans twice. */
function tickRuns(text) {
  const runs = new Map();
  for (let at = text.indexOf("`"); at >= 0; ) {
    const length = runLength(text, at, "`");
    if (!runs.has(length)) runs.set(length, { places: [], next: 0 });
    runs.get(length).places.push(at);
    at = text.indexOf("`", at + length);
  }
  return {
    next(length, from) {
      const run = runs.get(length);
      if (!run) return -1;
      while (run.next < run.places.length && run.places[run.next] < from) run.next += 1;
      return run.places[run.next] ?? -1;
    },
  };
}

function unpad(code) {
  return code.length > 2 && code.startsWith(" ") && code.endsWith(" ") && code.trim() ? code.slice(1, -1) : code;
}

function emphasis(out, openers, brackets, char, length, before, after) {
  const left = !isSpace(after) && (!isPunctuation(after) || isSpace(before) || isPunctuation(before));
  const right = !isSpace(before) && (!isPunctuation(before) || isSpace(after) || isPunctuation(after));
  const canOpen = left && (char !== "_" || !right || isPunctuation(before));
  const canClose = right && (char !== "_" || !left || isPunctuation(after));
  let rest = length;
  const stack = openers[char];
  while (canClose && rest > 0 && stack.length > 0) {
    const opener = stack[stack.length - 1];
    const width = opener.length >= 2 && rest >= 2 ? 2 : 1;
    const tag = char === "~" ? "s" : width === 2 ? "strong" : "em";
    // The opener's token keeps what is left of it, outside of what it opens.
    out[opener.at].opens.unshift(tag);
    out.push({ close: tag });
    opener.length -= width;
    out[opener.at].text = char.repeat(opener.length);
    rest -= width;
    if (opener.length === 0) stack.pop();
    // What opened inside of it can no longer close outside of it.
    while (brackets.length && brackets[brackets.length - 1].at > opener.at) brackets.pop();
    for (const other of Object.values(openers)) {
      if (other !== stack) while (other.length && other[other.length - 1].at > opener.at) other.pop();
    }
  }
  if (rest > 0) {
    if (canOpen) stack.push({ at: out.length, length: rest });
    out.push({ text: char.repeat(rest), opens: [] });
  }
}

function closeLink(out, openers, brackets, opener, href) {
  for (const stack of Object.values(openers)) {
    while (stack.length && stack[stack.length - 1].at > opener.at) stack.pop();
  }
  brackets.length = 0; // no link inside a link
  out[opener.at] = { openLink: href, image: opener.image };
  out.push({ closeLink: true });
}

function destination(text, at) {
  const end = text.slice(at, at + LONGEST_LINK).search(/[\s)]/);
  if (end < 0) return null;
  let href = text.slice(at, at + end);
  let close = at + end;
  // One pair of round brackets may be part of an address.
  if (href.includes("(") && text[close] === ")" && text[close + 1] === ")") {
    href += ")";
    close += 1;
  }
  if (text[close] !== ")") {
    const title = text.slice(close, close + LONGEST_LINK).indexOf(")");
    if (title < 0) return null;
    close += title;
  }
  if (href.startsWith("<") && href.endsWith(">")) href = href.slice(1, -1);
  return href ? { href, end: close + 1 } : null;
}

function angleLink(text, at) {
  const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/.exec(text.slice(at, at + LONGEST_LINK + 20));
  return found ? { href: found[1], end: at + found[0].length } : null;
}

function bareLink(text, at) {
  let href = /^[^\s<>"`]{1,2000}/.exec(text.slice(at, at + LONGEST_LINK))[0];
  const star = href.search(/[*\]|]/);
  if (star > 0) href = href.slice(0, star);
  while (".,:;!?'".includes(href.at(-1)) || (href.endsWith(")") && !href.includes("("))) href = href.slice(0, -1);
  return href;
}

function isSpace(char) {
  return char === undefined || /\s/.test(char);
}

function isPunctuation(char) {
  return char !== undefined && /[\p{P}\p{S}]/u.test(char);
}

function isWord(char) {
  return char !== undefined && /[\p{L}\p{N}_]/u.test(char);
}

// Drawing tokens.

function build(root, list, words) {
  const stack = [{ node: root, link: null }];
  const top = () => stack[stack.length - 1].node;
  const open = (node, link = null) => {
    // Deeper than this is no emphasis anybody meant; the text itself still shows.
    const fits = stack.length < DEEPEST_INLINE;
    if (fits) top().append(node);
    stack.push({ node: fits ? node : top(), link });
  };
  for (const token of list) {
    if (token.line) top().append(element("br"));
    else if (token.code !== undefined) top().append(element("code", "", token.code));
    else if (token.auto) {
      open(anchor(token.href) ?? element("span"), token);
      top().append(token.auto);
      closeAnchor(stack.pop(), top());
    } else if (token.openLink) {
      open(anchor(token.openLink) ?? element("span"), token);
      // An image is never loaded: its address could carry what was said here to somebody else.
      if (token.image) top().append(words.image.replace("{text}", ""));
    } else if (token.closeLink) closeAnchor(stack.pop(), top());
    else if (token.close) stack.pop();
    else {
      if (token.text) top().append(token.text);
      for (const tag of token.opens ?? []) open(element(tag));
    }
  }
}

function anchor(href) {
  const url = safeUrl(href);
  if (!url) return null;
  const link = element("a");
  link.href = url.href;
  link.target = "_blank";
  link.rel = "noreferrer noopener nofollow";
  link.referrerPolicy = "no-referrer";
  return link;
}

function safeUrl(href) {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

/** After a link stands where it goes, unless its own text says exactly that. */
function closeAnchor({ node, link }, parent) {
  const href = link.href ?? link.openLink;
  const url = safeUrl(href);
  if (!url) {
    if (!link.auto) parent.append(` (${href})`);
    return;
  }
  const shown = safeUrl(node.textContent.trim());
  const goes = url.protocol === "mailto:" ? url.pathname : url.host;
  const isPlain = shown && !shown.username && !shown.password && shown.host === url.host && shown.pathname === url.pathname;
  if (!isPlain) {
    const host = element("bdi", "host", goes);
    parent.append(host);
  }
}
