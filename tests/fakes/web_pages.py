"""Web pages in the layouts that sites use, each with the text that a reader of it wants."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import lxml.html

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")
_TARGET = re.compile(r"\]\([^)]*\)")


@dataclass(frozen=True)
class SamplePage:
    """The source of a page, and the words of its main part."""

    name: str
    source: str
    wanted: str


_NEWS = (
    "The harbour authority said that the new ferry will cross the strait in forty minutes, half the time of today.",
    "Engineers tested the hull, the batteries and the ramps for three weeks, and found one fault in a pump.",
    "Tickets go on sale in March, at the same price as before, with a discount for people who live on the island.",
    "Critics doubt the timetable, because the old terminal has room for one ship, and storms close it often.",
    "The council will vote on the terminal in April, after a hearing that is open to all who depend on it.",
    "Until then, the two older ships stay in service, although their engines need more repairs with every winter.",
)
_GERMAN = (
    "Die Stadtwerke erneuern im Sommer die Leitungen, weshalb die Hauptstraße sechs Wochen gesperrt wird.",
    "Busse halten so lange am Marktplatz, und Fahrräder dürfen durch den Park, sofern sie langsam fahren.",
    "Anwohner bekommen einen Ausweis, mit dem sie ihre Garagen erreichen, und einen festen Ansprechpartner.",
    "Die Kosten liegen nach Angaben der Verwaltung bei zwei Millionen Euro, von denen das Land die Hälfte trägt.",
    "Wer sich über Lärm beschwert, soll sich zuerst an die Baufirma wenden, danach an das Ordnungsamt.",
)
_CHINESE = (
    "市政府星期二宣布，新的地铁线路将于明年春天开通，全长二十公里，共设十五个车站，票价保持不变。",
    "工程师们在过去三个星期里测试了信号、车门和供电系统，只发现了一个小问题，已经修复。",
    "沿线居民希望新线路能够缓解早晚高峰的拥堵，并且减少换乘的时间，方便老人和学生出行。",
    "专家认为，线路开通以后，城市东部的房租可能上涨，政府应当提前准备更多的公共住房。",
)
_CODE = (
    "The client keeps one connection for each host, and closes it after thirty idle seconds.",
    "Set the limit with the second argument, which counts connections, not requests; zero means no limit.",
    "A request that waits longer than its timeout raises an error, and the connection is not used again.",
    "Retries are off by default, because a request that reached the server may have had its effect already.",
)
_MENU = "".join(f'<li><a href="/s/{n}">Section {n}</a></li>' for n in range(14))
_RELATED = "".join(f'<li><a href="/r/{n}">Ten things you did not know about story {n}</a></li>' for n in range(8))
_COOKIES = '<div class="cookie-banner popup">Our 800 partners value your privacy. <button>Accept</button></div>'
_SCRIPT = "<script>var tracker = {a: 'Some words in a script that no reader sees'};</script><style>p{color:red}</style>"


def _paragraphs(texts: tuple[str, ...], repeat: int = 2) -> str:
    return "".join(f"<p>{text}</p>" for text in texts * repeat)


def _semantic(body: str) -> str:
    return (
        f'{_COOKIES}<header class="header"><nav><ul>{_MENU}</ul></nav></header><main><article class="post">{body}'
        f'</article><aside class="sidebar"><ul>{_RELATED}</ul></aside></main><footer>© 2026</footer>'
    )


def _divs(body: str) -> str:
    return (
        f'<div id="header"><ul class="menu">{_MENU}</ul></div><div id="content"><div class="post">{body}</div></div>'
        f'<div id="sidebar"><ul>{_RELATED}</ul></div><div id="footer"><p>Imprint, contact</p></div>'
    )


def _table(body: str) -> str:
    menu = "".join(f'<a href="/{n}">Link {n}</a><br>' for n in range(12))
    return (
        f'<table width="100%"><tr><td colspan=2 bgcolor="#ccc"><font size=1>Home | Search | Guestbook</font></td></tr>'
        f"<tr><td width=120>{menu}</td><td>{body}</td></tr></table>"
    )


def _comments(body: str) -> str:
    talk = "".join(f'<li class="comment"><b>user{n}</b><p>First! I agree with number {n}.</p></li>' for n in range(9))
    return f'<div class="wrapper"><div class="entry-content">{body}</div><div id="comments"><ol>{talk}</ol></div></div>'


def _share(body: str) -> str:
    share = "".join(f'<a class="share-button" href="https://social.example/{n}">Share</a>' for n in range(6))
    return f'<div class="page"><div class="story-body">{body}</div><div class="social share">{share}</div></div>'


_DOCS = (
    '<h2>Connections</h2><p>{}</p><pre><code>client = Client(limit=10)\nclient.get("/")</code></pre>'
    "<h2>Limits</h2><p>{}</p><ul><li>hosts are counted by name</li><li>idle connections count too</li></ul>"
    "<h2>Timeouts</h2><p>{}</p><h2>Retries</h2><p>{}</p>"
).format(*_CODE)
_WIKI = (
    f"<p>{_NEWS[0]}</p><h2>History</h2><p>{_NEWS[1]}</p><p>{_NEWS[3]}</p>"
    "<table><tr><th>Ship</th><th>Year</th></tr><tr><td>Aurora</td><td>1988</td></tr><tr><td>Boreas</td><td>1994</td>"
    "</tr></table>"
    f"<h2>Service</h2><p>{_NEWS[4]}</p><p>{_NEWS[5]}</p><p>{_NEWS[2]}</p>"
)
_RECIPE = (
    "<p>This soup needs an hour, most of which the stove does alone, and it keeps for three days in a cold place.</p>"
    "<h2>Ingredients</h2><ul><li>500 g of carrots</li><li>one onion</li><li>a litre of stock</li></ul>"
    "<h2>Method</h2><ol><li>Cut the onion and the carrots, and fry them slowly in butter until they are soft.</li>"
    "<li>Add the stock, cover the pot, and let it simmer for forty minutes, stirring now and then.</li>"
    "<li>Blend it, add salt and lemon, and serve it with bread, yoghurt and a few leaves of parsley.</li></ol>"
)

_BODIES: dict[str, tuple[str, Callable[[str], str]]] = {
    "news": (_paragraphs(_NEWS), _semantic),
    "blog": (_paragraphs(_NEWS[2:]), _divs),
    "old layout": (_paragraphs(_NEWS), _table),
    "comments": (_paragraphs(_NEWS), _comments),
    "share buttons": (_paragraphs(_NEWS[:4]), _share),
    "German": (_paragraphs(_GERMAN), _semantic),
    "German blog": (_paragraphs(_GERMAN), _divs),
    "Chinese": (_paragraphs(_CHINESE), _semantic),
    "documentation": (_DOCS, _divs),
    "manual": (_DOCS, _semantic),
    "encyclopedia": (_WIKI, _divs),
    "encyclopedia, semantic": (_WIKI, _semantic),
    "recipe": (_RECIPE, _semantic),
    "recipe blog": (_RECIPE, _divs),
    "long read": (_paragraphs(_NEWS, 12), _comments),
}


def word_f1(found: str, wanted: str) -> float:
    """Return the F1 of the words of *found* against those of *wanted*; addresses of Markdown links are left out."""
    got, gold = (Counter(_WORD.findall(_TARGET.sub("]", text).lower())) for text in (found, wanted))
    return 2 * (got & gold).total() / max(1, got.total() + gold.total())


def text_of_html(source: str) -> str:
    """Return the words of *source*, with a space between elements."""
    return " ".join(lxml.html.document_fromstring(source).itertext()) if source.strip() else ""


def _words_of(body: str) -> str:
    return re.sub(r"<[^>]+>", " ", body)


PAGES = tuple(
    SamplePage(
        name,
        f"<!doctype html><html lang=en><head><title>{name}</title>{_SCRIPT}</head><body>{layout(body)}{_SCRIPT}",
        _words_of(body),
    )
    for name, (body, layout) in _BODIES.items()
)
