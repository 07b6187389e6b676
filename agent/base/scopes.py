"""Memory scope of a message, the paths of a scope's files, and the names that operators give scopes.

A scope is decided by typed facts of the event, never by arguments of a model.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gateway.errors import UserError
from gateway.events import ChatKind, InboundMessage, PlatformAccount, SessionKey, quote_file_name
from gateway.ports.journal import SessionRow
from gateway.ports.memory import BYTES

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments
    from gateway.store.files import SqlFiles
    from gateway.store.history import SqlHistory

_MOST_NAMED = 8
_PERSONA = "SOUL.md"
SHARED = "shared"  # read by all users, written by owners
AREAS = ("people", "chats")  # folders of a home with one folder for each scope
quote = quote_file_name
_SCOPE = re.compile(r"(?:shared|(?:people|chats)/[a-z0-9_%-][a-z0-9._%-]*)?\Z")


def account_of(message: InboundMessage, kind: str = "") -> PlatformAccount:
    """Return the sender's account. *kind* is the channel's platform; by default the channel's own name."""
    return PlatformAccount(kind=kind or message.key.channel, team=message.sender.team, id=message.sender.id)


def person_of(message: InboundMessage, kind: str = "") -> str:
    """Return the file name of the sender's account, which names the person while the account is not linked."""
    return account_of(message, kind).name


def chat_scope(key: SessionKey) -> str:
    """Return the scope of the shared chat, or of the private thread, *key*."""
    return f"chats/{quote(str(key))}"


def scope_of(message: InboundMessage, person: str, *, isolation: str = "strict") -> str:
    """Return the scope a message belongs to: that of *person* in a direct chat, the parent chat's in a group.

    *person* is whom the sender's account (`person_of`) belongs to. A private thread has fewer readers than its
    parent, so its scope is its own.

    With ``isolation="shared"`` (one person, the layout of the seeds) it is the home itself: ``""``.
    """
    if isolation == "shared":
        return ""
    if message.chat_kind is ChatKind.DIRECT:
        return f"people/{person}"
    return chat_scope(message.key if message.is_private else message.key.parent)


def list_scopes(home: Path) -> list[str]:
    """Return the scopes that have a folder in *home*, in order; without the home itself. Blocks."""
    paths = [path for area in AREAS for path in sorted((home / area).glob("*"))] + [home / SHARED]
    return [path.relative_to(home).as_posix() for path in paths if path.is_dir()]


def scope_folder(home: Path, scope: str) -> Path:
    """Return the folder of *scope*; raise ValueError for a text that names no scope."""
    if not _SCOPE.match(scope):
        raise ValueError(f"not a scope: {scope!r}")
    return home / scope if scope else home


def transcript_path(home: Path, scope: str, key: str) -> Path:
    """Return the path of the current transcript of *key*."""
    return scope_folder(home, scope) / "sessions" / f"{quote(key)}.jsonl"


def rebase_reference(scope: str, reference: str) -> str:
    """Return the reference of the same bytes in *scope*: it never leads out of there."""
    return f"{scope}/{reference.rpartition('/')[2]}"


# -- names that operators give ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeSelector:
    """A scope as the operator names it. At most one field is set."""

    scope: str = ""
    person: str = ""
    chat: str = ""


def label(scope: str) -> str:
    """Return a scope as people name it."""
    area, _, name = scope.partition("/")
    if area == "people":
        return PlatformAccount.from_name(name).label
    return unquote(name) or scope or "home"


async def find_scopes(
    home: Path,
    *,
    sessions: Sequence[SessionRow],
    documents: SqlDocuments,
    history: SqlHistory,
    files: SqlFiles,
) -> list[str]:
    """Return the scopes with a conversation, documents, a history, files or a folder: people first, each by name.

    A folder is not enough: no gateway has all of them where several share a store. "" is the home itself, last, where
    it remembers more than the persona of the installation.
    """
    remembering = set(await history.scopes())
    heads = await documents.heads(["", *await documents.scopes()])
    changed = {scope for scope, head in heads.items() if head.number}  # others have an epoch alone
    stored = {each.scope for each in sessions} | changed | remembering | set(await files.scopes())
    folders = await asyncio.to_thread(list_scopes, home)
    has_texts = bool(set(heads[""].revs) - {_PERSONA})
    is_scope = has_texts or "" in remembering or await asyncio.to_thread((home / "memory").is_dir)
    found = sorted({*folders, *stored} - {""}, key=lambda scope: (not scope.startswith("people/"), scope))
    return [*found, *([""] if is_scope else [])]


class ScopeNames:
    """Finds scopes by name. *person* returns the person of an account, *kind* the platform of a channel."""

    def __init__(
        self,
        scopes: Sequence[str],
        *,
        sessions: Sequence[SessionRow] = (),
        person: Callable[[PlatformAccount], str] = lambda account: account.name,
        kind: Callable[[str], str] = lambda channel: channel,
        has_teams: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """*scopes* are those of `find_scopes`. *has_teams* returns True for platforms with ids per team."""
        self._scopes = list(scopes)
        self._chats = {str(each.key): each.scope for each in sessions if each.scope}
        self._person = person
        self._kind = kind
        self._has_teams = has_teams

    def all(self) -> list[str]:
        """Return every scope that is there, in order."""
        return self._scopes

    def find(self, selector: ScopeSelector) -> str:
        """Return the one scope that is meant. Raises UserError, with near misses, when none or several are."""
        given = [text for text in (selector.scope, selector.person, selector.chat) if text]
        if len(given) > 1:
            raise UserError("say whose memory once: --scope, --person or --chat")
        there = self.all()
        if not given:
            if len(there) == 1:
                return there[0]
            raise UserError(f"say whose memory with --scope; {self._list_scopes(there)}")
        text = given[0]
        asked = (
            self._people(text) if selector.person else self._matching_chats(text) if selector.chat else self._any(text)
        )
        found = [scope for scope in dict.fromkeys(asked) if scope in there]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(found)
            raise UserError(f"{text} may be {several}; name it in full, or say --person or --chat")
        near = difflib.get_close_matches(text, [label(each) for each in there], n=3, cutoff=0.75)
        meant = f"did you mean {' or '.join(near)}?" if near else self._list_scopes(there)
        raise UserError(f"nothing is remembered of {text!r}; {meant}")

    def person_scope(self, text: str) -> str:
        """Return the scope of a person named as in the settings (`telegram:42`), whether it is there yet or not."""
        known = [scope for scope in dict.fromkeys(self._people(text)) if scope in self.all()]
        if len(known) > 1:
            raise UserError(f"{text} may be {', '.join(known)}; name it in full")
        if known:
            return known[0]
        try:
            key = SessionKey.parse(text)
        except ValueError:
            raise UserError(f"{text!r} names nobody; write channel:user_id, such as telegram:42") from None
        return f"people/{self._person(self._account(key.channel, key.chat))}"

    # -- inside ------------------------------------------------------------------------------------

    def _any(self, text: str) -> list[str]:
        exact = [text] if text in (SHARED, *self.all()) else [""] if text == "home" else []
        if exact:
            return exact
        return [*self._people(text), *self._matching_chats(text)]

    def _people(self, text: str) -> list[str]:
        """Return the scopes of people that may be meant: by scope, by account, by its id alone."""
        wanted = text.removeprefix("people/")
        channel, sign, rest = wanted.partition(":")
        account = self._account(channel, rest) if sign else PlatformAccount(kind="", id=wanted)
        found = [f"people/{wanted}", f"people/{self._person(account)}"]
        for scope in self.all():
            if scope.startswith("people/"):
                known = PlatformAccount.from_name(scope.removeprefix("people/"))
                # Without its team, or by the id alone, which may hold colons itself.
                if wanted == known.id or (account.user == known.user and account.team in ("", known.team)):
                    found.append(scope)
        return found

    def _account(self, channel: str, user: str) -> PlatformAccount:
        return PlatformAccount.from_input(f"{self._kind(channel)}:{user}", has_teams=self._has_teams)

    def _matching_chats(self, text: str) -> list[str]:
        """Return the scopes that a chat may read: as its last turn said, else its own, or its parent's."""
        wanted = text.removeprefix("chats/")
        if wanted in self._chats:
            return [self._chats[wanted]]
        found = [f"chats/{wanted}", f"chats/{quote(wanted)}", f"chats/{quote(wanted.partition('/')[0])}"]
        there = [scope for scope in self.all() if scope.startswith("chats/")]
        return found + [each for each in there if label(each).partition(":")[2] == wanted]

    def _list_scopes(self, there: Sequence[str]) -> str:
        if not there:
            return "nobody has said anything here yet"
        names = ", ".join(label(each) for each in there[:_MOST_NAMED])
        more = f" and {len(there) - _MOST_NAMED} more (`parlour memory` lists them)" if len(there) > _MOST_NAMED else ""
        return f"there are: {names}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeSize:
    """Size of a scope."""

    scope: str
    name: str
    remembered: int  # characters of MEMORY.md and USER.md
    entries: int  # of the history
    conversations: int  # transcripts, archives included
    bytes: int  # of everything


def measure(home: Path, scope: str, *, file_bytes: int) -> ScopeSize:
    """Look how much a scope holds; *file_bytes* are those of its files. Blocks."""
    folder = scope_folder(home, scope)
    texts = (folder / "USER.md", folder / "memory" / "MEMORY.md")
    history = folder / "memory" / "history.jsonl"
    # The home itself holds other things beside its memory.
    places = (folder,) if scope else (folder / "memory", folder / "sessions")
    files = [
        path
        for place in places
        for path in place.rglob("*")
        if path.is_file() and not path.is_symlink() and path.parent != folder / BYTES
    ]
    return ScopeSize(
        scope=scope,
        name=label(scope),
        remembered=sum(len(path.read_text("utf-8", "replace")) for path in texts if path.is_file()),
        entries=history.read_bytes().count(b"\n") if history.is_file() else 0,
        conversations=sum(path.parent.name == "sessions" and path.suffix == ".jsonl" for path in files),
        bytes=sum(path.stat().st_size for path in files) + file_bytes,
    )
