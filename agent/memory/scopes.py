"""Whose memory a message reads and writes, and how names become file names.

A scope is decided by typed facts of the event, never by a model's arguments (MEMORY-SPEC.md).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gateway.events import ChatKind, InboundMessage

SHARED = "shared"  # the scope that everybody reads and owners write
NAME_BYTES = 200  # of a quoted name; room is left for `.jsonl.corrupt` under the usual 255
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")
_SCOPE = re.compile(r"(?:shared|(?:people|chats)/[a-z0-9_%-][a-z0-9._%-]*)?\Z")


def quote(text: str) -> str:
    """Return a file name for *text*: two texts never share one, and no file system confuses two of them.

    Everything but ``a-z 0-9 - _ .`` is ``%`` and lower-case hex (leading dots too). A name beyond
    200 bytes is its beginning, ``%-`` (which quoting never makes) and a hash of the whole.
    """
    data = text.encode("utf-8", "surrogatepass")
    dots = len(data) - len(data.lstrip(b"."))
    pieces = [chr(byte) if byte in _PLAIN and n >= dots else f"%{byte:02x}" for n, byte in enumerate(data)]
    name = "".join(pieces)
    if not name:
        return "%"
    if len(name) <= NAME_BYTES:
        return name
    ending = "%-" + hashlib.sha256(data).hexdigest()[:40]
    kept = ""
    for piece in pieces:
        if len(kept) + len(piece) > NAME_BYTES - len(ending):
            break
        kept += piece
    return kept + ending


def person_of(message: InboundMessage, kind: str = "") -> str:
    """Return the sender's name as a person: the quoted ``<kind>:[<team>:]<id>``.

    *kind* is the channel's kind (`telegram` for a block called `telegram-work`); by default the
    block's own name.
    """
    sender = message.sender
    parts = (
        [kind or message.key.channel, sender.team, sender.id]
        if sender.team
        else [
            kind or message.key.channel,
            sender.id,
        ]
    )
    return quote(":".join(parts))


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
    return f"chats/{quote(str(message.key if message.is_private else message.key.parent))}"


def scope_folder(home: Path, scope: str) -> Path:
    """Return the folder of *scope*; raise ValueError for anything that is no scope's name."""
    if not _SCOPE.match(scope):
        raise ValueError(f"not a scope: {scope!r}")
    return home / scope if scope else home


def transcript_path(home: Path, scope: str, key: str) -> Path:
    """Return where the current transcript of *key* stands."""
    return scope_folder(home, scope) / "sessions" / f"{quote(key)}.jsonl"


def blob_path(home: Path, scope: str, digest: str) -> Path:
    """Return where the content-addressed text *digest* of a scope stands."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"not a sha256: {digest!r}")
    return scope_folder(home, scope) / "blobs" / digest


def rebase_reference(scope: str, reference: str) -> str:
    """Return the reference of the same bytes in *scope*: it never leads out of there."""
    return f"{scope}/{reference.rpartition('/')[2]}"


def attachment_path(home: Path, scope: str, digest: str) -> Path:
    """Return where the bytes *digest* of a file that a scope sent or was sent stand."""
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"not a sha256: {digest!r}")
    return scope_folder(home, scope) / "attachments" / digest
