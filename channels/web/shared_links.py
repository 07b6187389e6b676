"""Links by which one conversation of a person is read without a login, up to its last message when it was shared.

A link is a random token; its SHA-256 is in a note of its person, with the conversation, the last turn and the end. No
word is copied: words that are erased from the conversation are gone from the page of the link, too. The page has no
script, no file, and neither commands, notices and questions nor versions that were replaced.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from channels.web.conversation_documents import ConversationText
from gateway.errors import UserError
from gateway.i18n import translate
from gateway.ports.channel import DisplayedMessage
from gateway.text import comparable_address, sanitize

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState

LIFETIMES = (1, 7, 30)  # days that a link can be valid for
MOST_LINKS = 50  # of one person
LONGEST_SHARED = 200_000  # characters of one page; the oldest messages beyond are left out
_NOTE = "links."


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLink:
    """A link that is valid, as its person sees it; *id* cannot be used to read anything."""

    id: str
    who: str
    conversation: str  # as the page calls it
    turn: str  # the last one that is shown
    at: datetime
    until: datetime


class SharedLinks:
    """The links of every person of one page: one note for each person, which is changed as a whole."""

    def __init__(self, state: SqlChannelState, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._state = state
        self._now = now

    async def create(self, who: str, conversation: str, turn: str, days: int) -> tuple[SharedLink, str]:
        """Return a new link, and its token, which is not stored. Raises UserError if *who* has too many."""
        token = _prefix(who) + secrets.token_urlsafe(24)
        now = self._now()
        until = now + timedelta(days=days)
        link = SharedLink(id=_digest(token), who=who, conversation=conversation, turn=turn, at=now, until=until)

        def add(links: list[SharedLink]) -> list[SharedLink]:
            if sum(each.who == who for each in links) >= MOST_LINKS:
                raise UserError(f"{who} has {MOST_LINKS} links")
            return [*links, link]

        await self._change(_name(who), add)
        return link, token

    async def of_person(self, who: str) -> Sequence[SharedLink]:
        """Return the valid links of *who*, the newest first; expired ones are removed."""
        await self._change(_name(who), lambda links: links)
        found = _decode(await self._state.load(_name(who)))
        return sorted((each for each in found if each.who == who), key=lambda each: each.at, reverse=True)

    async def withdraw(self, who: str, link: str) -> bool:
        """Make a link of *who* invalid for good; return False if they have none with this id."""
        if all(each.id != link for each in await self.of_person(who)):
            return False
        return await self._change(_name(who), lambda links: [each for each in links if each.id != link])

    async def remove_all(self, people: Collection[str] | None) -> None:
        """Remove all links of *people*; `None` stands for all people. Raises StoreUnavailable."""
        if people is None:
            for name in await self._state.all(_NOTE):
                await self._state.save(name, None)
            return

        def remove(links: list[SharedLink]) -> list[SharedLink]:
            return [each for each in links if each.who not in people]

        for name in {_name(who) for who in people}:
            await self._change(name, remove)

    async def find(self, token: str) -> SharedLink | None:
        """Return the link of *token* if it is valid."""
        found, digest = _decode(await self._state.load(_NOTE + token[:_PREFIX_LENGTH])), _digest(token)
        return next((each for each in found if each.id == digest and each.until > self._now()), None)

    async def tidy(self) -> None:
        """Remove the links that have expired."""
        for name in await self._state.all(_NOTE):
            await self._change(name, lambda links: links)

    async def _change(self, name: str, change: Callable[[list[SharedLink]], list[SharedLink]]) -> bool:
        """Store what *change* makes of the valid links of a note; return False if that is what is stored."""
        while True:
            before = await self._state.load(name)
            known = _decode(before)
            after = change([each for each in known if each.until > self._now()])
            if after == known:
                return False
            if await self._state.replace(name, before, _encode(after) if after else None):
                return True


_PREFIX_LENGTH = 8  # of a token: the note of its person is found by it


def _prefix(who: str) -> str:
    return _digest(who)[:_PREFIX_LENGTH]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _name(who: str) -> str:
    return _NOTE + _prefix(who)


def _encode(links: Sequence[SharedLink]) -> str:
    return json.dumps([asdict(each) for each in links], default=datetime.isoformat)


def _decode(value: str | None) -> list[SharedLink]:
    fields: list[dict[str, Any]] = [] if value is None else json.loads(value)
    moments = ("at", "until")
    return [SharedLink(**each | {name: datetime.fromisoformat(each[name]) for name in moments}) for each in fields]


# -- the page of a link ----------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 46rem; padding: 1rem; font: 16px/1.6 system-ui, sans-serif;
  background: light-dark(#faf7f2, #191614); color: light-dark(#2b2522, #ece5dd); }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
h2 { margin: 1.5rem 0 .2rem; font-size: .85rem; color: light-dark(#6d625b, #a69a90); }
a { color: light-dark(#7a2e3f, #d98b9a); }
article { overflow-wrap: anywhere; }
.said { padding: .6rem 1rem; border-radius: 1rem; white-space: pre-wrap; background: light-dark(#f1e4e0, #3a272b); }
pre { overflow-x: auto; padding: .7rem; border-radius: .6rem; background: light-dark(#f3ede4, #211d1a); }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { padding: .2rem .6rem; border: 1px solid light-dark(#e6ddd2, #38312c); }
header p, footer { font-size: .85rem; color: light-dark(#6d625b, #a69a90); }
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
# Nothing runs, nothing is loaded, and the page has no origin of ours even if something did. A page that a link opens
# is an ordinary one; browsers refuse a sandboxed page with another opener policy (HTML, "sandboxing flags").
SHARED_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox allow-popups allow-popups-to-escape-sandbox",
    "Cross-Origin-Opener-Policy": "unsafe-none",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex, nofollow",
}


def latest_messages(lines: Sequence[DisplayedMessage], *, is_cut: bool = False) -> list[DisplayedMessage]:
    """Return the messages and answers among *lines* that a reader of a link may see, each in its latest version.

    With *is_cut*, older lines are missing, among them versions that others here replace.
    """
    gone = {each.turn for each in lines if each.role == "command"}
    kept: list[DisplayedMessage] = []
    places: dict[str, int] = {}  # of a message or any version of it, in `kept`
    for line in lines:
        if line.role not in ("user", "assistant") or line.turn in gone:
            continue
        if line.replaces in places or (line.replaces and is_cut):
            place = places.get(line.replaces, 0)
            # The answer of a replaced version may come behind this one.
            gone |= {each.turn for each in kept[place:]} - {line.turn}
            del kept[place:]
            places = {each: n for each, n in places.items() if n <= place}
        if line.role == "user" and line.message_id:
            places[line.message_id] = len(kept)
        kept.append(replace(line, text=line.typed) if line.role == "user" else line)
    return [each for each in kept if each.text]


def to_html(conversation: ConversationText, until: datetime, language: str) -> str:
    """Return the page of a link; texts are written as text, answers as Markdown without HTML and pictures."""
    title = html.escape(" ".join(sanitize(conversation.title).split()))
    notice = html.escape(translate("web.shared_notice", language, date=f"{until.astimezone(UTC):%Y-%m-%d}"))
    cut = f"<p>{html.escape(translate('web.export_cut', language))}</p>" if conversation.is_cut else ""
    articles = "\n".join(
        _article(each, language) for each in latest_messages(conversation.lines, is_cut=conversation.is_cut)
    )
    return (
        f'<!doctype html>\n<html lang="{html.escape(language)}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f'<body><main><header><h1 dir="auto">{title}</h1><p>{notice}</p>{cut}</header>\n'
        f"{articles}\n</main></body></html>\n"
    )


def _article(line: DisplayedMessage, language: str) -> str:
    who = html.escape(translate("web.shared_person" if line.role == "user" else "web.bot", language))
    if line.role == "user":
        body = f'<div class="said" dir="auto">{html.escape(sanitize(line.text))}</div>'
    else:
        body = f'<div dir="auto">{_to_markup(sanitize(line.text), line.links)}</div>'
    return f"<article><h2>{who} · {line.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC</h2>{body}</article>"


def _to_markup(text: str, links: Sequence[str] | None) -> str:
    """Return Markdown as HTML; *links* are the only addresses that may be links, None = all."""
    from markdown_it import MarkdownIt  # takes a moment to load

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    allowed = None if links is None else {comparable_address(each) for each in links}

    def is_link(url: str) -> bool:
        is_web = url.lower().startswith(("https://", "http://", "mailto:"))
        return is_web and (allowed is None or comparable_address(url) in allowed)

    parser.validateLink = is_link  # type: ignore[method-assign]
    rendered: str = parser.render(text)
    return rendered.replace('<a href="', '<a target="_blank" rel="noopener noreferrer nofollow" href="')
