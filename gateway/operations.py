"""What the operator can ask of a home, as plain async generators of lines.

The control socket serves them while a gateway runs; without one a command opens the home and runs
the same generators itself. Lines are JSON objects; the command line turns them into text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from gateway.admission import RefusalLog
from gateway.backup import backup
from gateway.control import Connection, Handler, Line
from gateway.errors import UserMistake
from gateway.events import SessionKey, reference
from gateway.home import Home
from gateway.ports import Sessions, Store

T = TypeVar("T")
Operation: TypeAlias = Callable[[Line], AsyncIterator[Line]]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any] | None]]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]

_MOST_LINES = 1_000


@dataclass(frozen=True, kw_only=True)
class Operations:
    """The operations over what the composition root built. Everything optional is simply not offered."""

    home: Home
    version: str
    started_at: datetime
    store: Store
    sessions: Sessions
    channels: Callable[[], Mapping[str, bool]]  # block name -> hears its platform now
    still: Callable[[], AbstractAsyncContextManager[object]]  # see gateway.backup.backup
    submit: Callable[[SessionKey, str], Awaitable[str]] | None = None  # a text as job of ours; the turn's id
    login: Callable[[], Awaitable[str]] | None = None  # a code for the page
    claim: Callable[[], Awaitable[str]] | None = None  # a code that makes its sender the owner
    converse: Callable[[Receive, Send], Awaitable[None]] | None = None  # the console channel's
    refusals: RefusalLog | None = None

    def named(self) -> Mapping[str, Operation]:
        """Return the operations that answer and end, by name."""
        return {
            "status": self.status,
            "sessions list": self.list_sessions,
            "sessions show": self.show_session,
            "send": self.send,
            "turn": self.turn,
            "backup": self.backup,
            "prune": self.prune,
            "web login": self.web_login,
            "owner claim": self.owner_claim,
            "why": self.why,
        }

    def handlers(self) -> Mapping[str, Handler]:
        """Return everything as handlers of the control socket, the terminal chat included."""
        return {"chat attach": self.attach} | {name: _handler(run) for name, run in self.named().items()}

    async def status(self, _: Line) -> AsyncIterator[Line]:
        """One line: what runs, since when, how much waits, which channels hear."""
        yield {
            "version": self.version,
            "home": str(self.home.path),
            "started_at": _plain(self.started_at),
            "channels": dict(self.channels()),
            **_plain(await self.store.journal.depth()),
        }

    async def list_sessions(self, _: Line) -> AsyncIterator[Line]:
        """A line per session, the most recently used first."""
        for session in await self.sessions.all():
            yield _plain(session)

    async def show_session(self, arguments: Line) -> AsyncIterator[Line]:
        """The newest lines of one session, as people saw them."""
        limit = min(int(arguments.get("limit", 50)), _MOST_LINES)
        for line in await self.sessions.shown(_key(arguments), limit=limit):
            yield _plain(line)

    async def send(self, arguments: Line) -> AsyncIterator[Line]:
        """Hand a text to a session as a job of ours; it goes all nine stages."""
        text = str(arguments.get("text", ""))
        if not text.strip():
            raise UserMistake("there is nothing to send; give a text")
        submit = _offered(self.submit, "nothing can be sent here")
        yield {"turn": (turn := await submit(_key(arguments), text)), "reference": reference(turn)}

    async def turn(self, arguments: Line) -> AsyncIterator[Line]:
        """The whole story of one turn."""
        wanted = str(arguments.get("reference", ""))
        story = await self.store.journal.story(wanted) if wanted else None
        if story is None:
            raise UserMistake(f"no turn begins with {wanted!r}; the reference stands at the end of the line people saw")
        yield _plain(story)

    async def backup(self, arguments: Line) -> AsyncIterator[Line]:
        """Write a backup; the path is the asking command's, made absolute by it."""
        target = Path(str(arguments.get("file", "")))
        if not target.is_absolute():
            raise UserMistake("a backup needs a file to write to")
        made = await backup(self.home, self.store, target, still=self.still())
        yield {"file": str(made.target), "files": made.files, "size": made.size, "left_out": list(made.left_out)}

    async def prune(self, _: Line) -> AsyncIterator[Line]:
        """Remove what is past its time."""
        yield {"rows": await self.store.prune()}

    async def web_login(self, _: Line) -> AsyncIterator[Line]:
        """A login code for the page, good once."""
        yield {"code": await _offered(self.login, "the page is switched off; set channels.web.enabled to true")()}

    async def owner_claim(self, _: Line) -> AsyncIterator[Line]:
        """A code that makes its sender the owner, good once for 15 minutes."""
        yield {"code": await _offered(self.claim, "there is an owner already; see PARLOUR_OWNERS")()}

    async def why(self, arguments: Line) -> AsyncIterator[Line]:
        """Who was not heard lately, and what would admit them."""
        kept = _offered(self.refusals, "nothing was refused: no gateway runs")
        for refused in kept.recent(str(arguments.get("channel", "")), str(arguments.get("sender", ""))):
            yield _plain(refused)

    async def attach(self, _: Line, connection: Connection) -> None:
        """Let a terminal into the console channel until it leaves."""
        converse = _offered(self.converse, "the console is switched off; set channels.console.enabled to true")
        await converse(connection.receive, connection.send)


def _handler(run: Operation) -> Handler:
    async def handle(arguments: Line, connection: Connection) -> None:
        async for line in run(arguments):
            await connection.send(line)

    return handle


def _offered(part: T | None, otherwise: str) -> T:
    if part is None:
        raise UserMistake(otherwise)
    return part


def _key(arguments: Line) -> SessionKey:
    try:
        return SessionKey.parse(str(arguments.get("key", "")))
    except ValueError as wrong:
        raise UserMistake(f"{wrong}; `parlour sessions list` shows them") from None


def _plain(value: Any) -> Any:
    """Return *value* as JSON has it: times as ISO 8601, keys as text, records as objects."""
    if isinstance(value, SessionKey):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
