"""HTML as Markdown: the main part of a page alone, or all of it. Runs in the reader process, behind its limits.

`lxml` is C and every byte is a stranger's: only that process calls it. The module is imported before the limits are
set, and imports its libraries after that.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

_TRACKING = re.compile(
    r"utm_\w+|fbclid|gclid|dclid|gbraid|wbraid|msclkid|yclid|twclid|igshid|mc_[ce]id|_hs(?:enc|mi)|ref_src|vero_id"
    r"|oly_(?:anon|enc)_id|mkt_tok|s_cid|wt_mc|at_(?:medium|campaign)",
    re.IGNORECASE,
)


def clean_link(address: str) -> str:
    """Return *address* without tracking parameters; "" if it leads to no web page."""
    try:
        parts = urlsplit(address.strip())
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or port == 0:
        return ""
    if any(sign in address for sign in "<>\"'`\\") or not address.isprintable():
        return ""
    query = parts.query
    if _TRACKING.search(query):
        pairs = parse_qsl(query, keep_blank_values=True)
        query = urlencode([(name, value) for name, value in pairs if not _TRACKING.fullmatch(name)])
    # Spaces and parentheses would end the link in Markdown.
    return urlunsplit(parts._replace(query=query)).translate(_QUOTED)


_QUOTED = str.maketrans({" ": "%20", "(": "%28", ")": "%29", "[": "%5B", "]": "%5D"})


MAIN_CHARS = 200  # a shorter main part is none: the whole page is read
MAIN_BYTES = 2_000_000  # of a page whose main part is looked for; larger ones are read whole
SOURCE_CHARS = 3_000_000  # of a page's source: more takes longer than the process may
_META = re.compile(rb"<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}[\"']?\s{0,9}([-\w]{1,40})", re.IGNORECASE)
_HEAD = 4_096  # bytes in which a page names its charset
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_DROPPED = (
    *("script", "style", "noscript", "template", "svg", "math", "iframe", "object", "img", "picture"),
    *("video", "audio", "canvas", "form", "input", "button", "select", "textarea", "link", "meta", "title", "dialog"),
)
_FRAMES = ("nav", "footer", "aside")
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2})?")
_PUBLISHED = re.compile(r'"datePublished"\s*:\s*"(\d{4}-\d{2}-\d{2}(?:T\d{2}:\d{2})?)')
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
_DATE_META = ("article:published_time", "date", "dc.date", "datepublished", "article:modified_time")


def read_page(data: bytes, *, charset: str = "", address: str = "", is_whole: bool = True) -> dict[str, Any]:
    """Return text, title, language and date of the page that came from *address*, links absolute.

    *charset* is what the server named. Without *is_whole*, the text is the main part if one is found, else the page
    without its navigation. A file has no address: of its relative links only the words are left.
    """
    source = decode_page(data, charset)
    is_cut = len(source) > SOURCE_CHARS
    tree = _parse(source)
    if tree is None:
        return {"text": _flat_text(source), "is_main": False, "is_cut": is_cut}
    facts = {"title": _title(tree), "language": _language(tree), "date": _date(tree)}
    _clean(tree, address)
    text = "" if is_whole or len(data) > MAIN_BYTES else _main_part(tree)
    is_main = len(text) >= MAIN_CHARS
    if not is_main:
        text = _all_text(tree, _FRAMES if not is_whole else ())
    stated = {name: value for name, value in facts.items() if value}
    return {"text": text, "is_main": is_main, "is_cut": is_cut, **stated}


def decode_page(data: bytes, charset: str) -> str:
    """Return the page's text: by its byte order mark, the server's word, the page's own, else as UTF-8 or Latin."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace")
    found = _META.search(data[:_HEAD])
    for name in (charset, found[1].decode() if found else ""):
        try:
            codec = codecs.lookup(name).name if name else ""
        except LookupError:
            continue
        if codec and not codec.startswith(("utf-16", "utf-32", "utf-7")) and codec in _TEXT_CODECS | {"utf-8"}:
            return data.decode(codec, "replace")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


# What pages are written in. (Python also knows codecs that unpack, such as `zip`.)
_TEXT_CODECS = frozenset(
    codecs.lookup(name).name
    for name in (
        *("ascii", "latin-1", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258"),
        *("iso8859-2", "iso8859-5", "iso8859-7", "iso8859-9", "iso8859-15", "koi8-r", "koi8-u", "gb18030", "gbk"),
        *("gb2312", "big5", "big5hkscs", "shift_jis", "cp932", "euc_jp", "euc_kr", "cp949", "tis-620"),
    )
)


def _parse(source: str) -> Any:
    """Return the tree of *source*; None if it holds no element, or is nested deeper than the parser goes."""
    import lxml.etree
    import lxml.html

    # Without `huge_tree`, text below 256 elements is lost, and clumsy pages nest that deep. Limits are the process's.
    parser = lxml.html.HTMLParser(
        encoding="utf-8", no_network=True, huge_tree=True, remove_comments=True, remove_pis=True
    )
    try:
        tree = lxml.html.document_fromstring(source[:SOURCE_CHARS].encode("utf-8", "replace"), parser=parser)
    except (lxml.etree.ParserError, ValueError):
        return None
    return None if any("Excessive depth" in each.message for each in parser.error_log) else tree


def _flat_text(source: str) -> str:
    """Return the words of *source* without their form."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(source[:SOURCE_CHARS], "html.parser")
    for element in soup.find_all(True):
        if _is_hidden(element) or element.name in _DROPPED:
            element.extract()
    return soup.get_text("\n", strip=True)


def _title(tree: Any) -> str:
    for found in (*tree.xpath("//meta[@property='og:title']/@content"), *tree.xpath("//title/text()")):
        if title := " ".join(str(found).split()):
            return title[:300]
    return ""


def _language(tree: Any) -> str:
    found = _LANGUAGE.fullmatch((tree.get("lang") or tree.get("xml:lang") or "").strip()[:40])
    return found[0] if found else ""


def _date(tree: Any) -> str:
    """Return the day, or day and time, on which the page says it was published; "" if it does not say."""
    named: dict[str, str] = {}
    for meta in tree.iter("meta"):
        key = (meta.get("property") or meta.get("name") or meta.get("itemprop") or "").lower()
        named.setdefault(key, meta.get("content") or "")
    stated = [named.get(key, "") for key in _DATE_META]
    for script in tree.iterfind(".//script[@type='application/ld+json']"):
        stated += _PUBLISHED.findall((script.text or "")[:50_000])[:1]
    stated += [str(each) for each in tree.xpath("//article//time/@datetime")[:1]]
    return next((match[0] for each in stated if (match := _DATE.match(each.strip()))), "")


def _clean(tree: Any, address: str) -> None:
    """Remove what a reader of the page would not see, and addresses that lead to no page."""
    for element in list(tree.iter()):
        if element.tag == "html" or element.tag == "body" or element.getparent() is None:
            continue
        if element.tag == "embed":
            element.drop_tag()  # the parser does not know that it has no content: what follows is in it
        elif _is_hidden(element) or element.tag in _DROPPED:
            element.drop_tree()
    if address:
        tree.make_links_absolute(address, resolve_base_href=True, handle_failures="discard")
    _clean_links(tree)


def _is_hidden(element: Any) -> bool:
    """Return True for an element that is not shown: its words may be written for models alone."""
    return (
        element.get("hidden") is not None
        or element.get("aria-hidden") == "true"
        or _HIDDEN.search(element.get("style") or "") is not None
    )


def _clean_links(tree: Any) -> None:
    for link in tree.iter("a"):
        address = clean_link(link.get("href") or "")
        if address:
            link.set("href", address)
        else:
            link.attrib.pop("href", None)  # its words stay
        link.attrib.pop("title", None)


def _main_part(tree: Any) -> str:
    """Return the page's main part; "" if none is found."""
    import logging
    from copy import deepcopy

    from readability import Document
    from readability.readability import Unparseable

    logging.getLogger("readability").disabled = True  # it quotes pages
    logging.getLogger("readability.readability").disabled = True
    try:
        return _markdown(Document(deepcopy(tree)).summary(html_partial=True))
    except Unparseable:
        return ""


def _all_text(tree: Any, left_out: Sequence[str]) -> str:
    """Return the page as Markdown without the elements in *left_out*."""
    import lxml.html

    for element in [each for name in left_out for each in tree.iter(name)]:
        if element.getparent() is not None:
            element.drop_tree()
    return _markdown(lxml.html.tostring(tree, encoding="unicode"))


def _markdown(source: str) -> str:
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    soup = BeautifulSoup(source, "lxml", huge_tree=True)
    try:
        text = str(MarkdownConverter(heading_style="ATX", bullets="-").convert_soup(soup))
    except RecursionError:  # nested beyond reason: the words without their form
        text = soup.get_text("\n")
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for n, line in enumerate(lines) if line or (n and lines[n - 1])).strip()
