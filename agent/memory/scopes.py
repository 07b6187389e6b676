"""Memory scope of a message, and the paths of a scope's files.

A scope is decided by typed facts of the event, never by arguments of a model.
"""

from __future__ import annotations

import re
from pathlib import Path

from gateway.events import ChatKind, InboundMessage, PlatformAccount, SessionKey, quote_file_name

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
