"""What the operator can ask of a home, as plain async generators of lines.

The control socket serves them while a gateway runs; without one a command opens the home and runs
the same generators itself. Lines are JSON objects; the command line turns them into text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from gateway.access.refusal_log import ChannelRefusals, RefusalLog
from gateway.backup import backup
from gateway.control import ControlConnection, Conversation, Line, Operation
from gateway.errors import UserError
from gateway.events import SessionKey, short_turn_id
from gateway.home import Home
from gateway.ports import Channel, SessionReader, Store
from gateway.ports.entry_points import package_version
from gateway.quarantine import Quarantine, list_events
from gateway.settings.channel_blocks import TERMINAL

Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any] | None]]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]

_MOST_LINES = 1_000
_MOST_DEAD = 20
NO_GATEWAY = "no gateway runs here; start one with `parlour run`"


class SupportsQuarantine(Protocol):
    """What has the platform events that were set aside, and takes one in again."""

    async def replay(self, name: str, channels: Mapping[str, Channel]) -> bool:
        """Hand an event to its channel once more; False when there is no such event."""
        ...

    @property
    def quarantine(self) -> Quarantine:
        """The quarantine of this home."""
        ...


class OperableApp(Protocol):
    """What the composition root offers to operations."""

    @property
    def home(self) -> Home:
        """The home this process owns."""
        ...

    @property
    def store(self) -> Store:
        """The open store."""
        ...

    @property
    def sessions(self) -> SessionReader:
        """What was said."""
        ...

    @property
    def intake(self) -> SupportsQuarantine:
        """Where platform events come in."""
        ...

    @property
    def refusals(self) -> RefusalLog:
        """Who was not heard."""
        ...

    @property
    def channels(self) -> Mapping[str, Channel]:
        """The open channels by block name; empty in a process that runs no gateway."""
        ...

    def readiness(self) -> Mapping[str, bool | None]:
        """Per channel: None = not tried yet, False = degraded, True = hears its platform."""
        ...

    def pause_writes(self) -> AbstractAsyncContextManager[object]:
        """Hold while nothing may write files: first what was committed is projected, then projector and jobs wait."""
        ...

    async def submit(self, key: SessionKey, text: str) -> str:
        """Accept *text* as a job of ours in the session *key*; return its turn's id."""
        ...

    async def work(self) -> Mapping[str, Any]:
        """Return how the work beside the turns stands: its jobs by kind, and what it may spend today."""
        ...


@runtime_checkable
class SupportsAttach(Protocol):
    """A channel that terminals attach to."""

    async def attach(self, receive: Receive, send: Send) -> None:
        """Serve one terminal until it disconnects."""
        ...


def _not_in_quarantine(name: str) -> UserError:
    return UserError(f"nothing called {name!r} is in quarantine; `parlour quarantine list` shows what is")


class GatewayOperations:
    """The operations over what the composition root built."""

    def __init__(self, app: OperableApp, more: Mapping[str, Operation] | None = None) -> None:
        """*more* are those of rooms that the gateway does not see, by name."""
        self._app = app
        self._more = more or {}
        self._started_at = datetime.now(UTC)

    def by_name(self) -> Mapping[str, Operation]:
        """Return the operations that answer and end, by name."""
        return {
            "status": self.status,
            "sessions list": self.list_sessions,
            "sessions show": self.show_session,
            "send": self.send,
            "turn": self.turn,
            "backup": self.backup,
            "prune": self.prune,
            "quarantine list": self.list_quarantine,
            "quarantine drop": self.drop_from_quarantine,
            "quarantine replay": self.replay_from_quarantine,
            **self._more,
        }

    def conversations(self) -> Mapping[str, Conversation]:
        """Return the operations in which both sides send lines, by name."""
        return {"chat attach": self.attach}

    async def status(self, _: Line) -> AsyncIterator[Line]:
        """One line: what runs, since when, how much waits, which channels hear, what was given up and why."""
        yield {
            "version": package_version(),
            "home": str(self._app.home.path),
            "gateway": "running" if self._app.channels else "not running",
            "since": plain(self._started_at),
            "channels": dict(self._app.readiness()),
            **plain(await self._app.store.journal.depth()),
            **plain(await self._app.work()),
            "unheard": {name: _figures(each) for name, each in self._app.refusals.summary().items()},
            "dead_letters": [plain(group) for group in await self._app.store.outbox.dead(limit=_MOST_DEAD)],
        }

    async def list_sessions(self, _: Line) -> AsyncIterator[Line]:
        """A line per session, the most recently used first."""
        for session in await self._app.sessions.all():
            yield plain(session)

    async def show_session(self, arguments: Line) -> AsyncIterator[Line]:
        """The newest lines of one session, as people saw them."""
        limit = min(int(arguments.get("limit", 50)), _MOST_LINES)
        for line in await self._app.sessions.displayed_messages(_key(arguments), limit=limit):
            yield plain(line)

    async def send(self, arguments: Line) -> AsyncIterator[Line]:
        """Hand a text to a session as a job of ours; it goes all nine stages."""
        text = str(arguments.get("text", ""))
        if not text.strip():
            raise UserError("there is nothing to send; give a text")
        turn = await self._app.submit(_key(arguments), text)
        yield {"turn": turn, "reference": short_turn_id(turn), "running": bool(self._app.channels)}

    async def turn(self, arguments: Line) -> AsyncIterator[Line]:
        """The whole story of one turn."""
        wanted = str(arguments.get("reference", ""))
        story = await self._app.store.journal.trace(wanted) if wanted else None
        if story is None:
            raise UserError(f"no turn begins with {wanted!r}; the reference stands at the end of the line people saw")
        yield plain(story)

    async def backup(self, arguments: Line) -> AsyncIterator[Line]:
        """Write a backup; the path is the asking command's, made absolute by it."""
        target = Path(str(arguments.get("file", "")))
        if not target.is_absolute():
            raise UserError("a backup needs a file to write to")
        made = await backup(self._app.home, self._app.store, target, still=self._app.pause_writes())
        yield {"file": str(made.target), "files": made.files, "size": made.size, "left_out": list(made.left_out)}

    async def prune(self, _: Line) -> AsyncIterator[Line]:
        """Remove what is past its time."""
        yield {"rows": await self._app.store.prune(), "events": await self._app.intake.quarantine.prune()}

    async def list_quarantine(self, _: Line) -> AsyncIterator[Line]:
        """A line per platform event that was set aside, the newest first; no word of it."""
        for event in await asyncio.to_thread(list_events, self._app.home.quarantine):
            yield {"name": event.file.stem, **plain(event)}

    async def drop_from_quarantine(self, arguments: Line) -> AsyncIterator[Line]:
        """Remove one event, so that it is handled when the platform brings it again."""
        name = str(arguments.get("name", ""))
        if not await self._app.intake.quarantine.drop(name):
            raise _not_in_quarantine(name)
        yield {"name": name}

    async def replay_from_quarantine(self, arguments: Line) -> AsyncIterator[Line]:
        """Hand one event to its channel as if it had just come, and remove it when that goes well."""
        if not self._app.channels:
            raise self._absent("no channel is open here")
        name = str(arguments.get("name", ""))
        try:
            is_here = await self._app.intake.replay(name, self._app.channels)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - an operator's boundary; its text may quote the event
            raise UserError(f"{name} failed again ({type(error).__name__}) and stays in quarantine") from None
        if not is_here:
            raise _not_in_quarantine(name)
        yield {"name": name}

    async def attach(self, _: Line, connection: ControlConnection) -> None:
        """Let a terminal into the console channel until it leaves."""
        consoles = [channel for channel in self._channels(TERMINAL) if isinstance(channel, SupportsAttach)]
        if not consoles:
            raise self._absent("the console is switched off; set channels.console.enabled to true")
        await consoles[0].attach(connection.receive, connection.send)

    def _channels(self, first: str) -> list[Channel]:
        """Return the open channels, the block named *first* before the others."""
        return [channel for _, channel in sorted(self._app.channels.items(), key=lambda item: item[0] != first)]

    def _absent(self, switched_off: str) -> UserError:
        return UserError(switched_off if self._app.channels else NO_GATEWAY)


def _figures(unheard: ChannelRefusals) -> Line:
    reasons = dict(unheard.reasons.most_common())
    return {
        "since": plain(unheard.since),
        "messages": unheard.messages,
        "people": len(unheard.people),
        "reasons": reasons,
    }


def _key(arguments: Line) -> SessionKey:
    try:
        return SessionKey.parse(str(arguments.get("key", "")))
    except ValueError as wrong:
        raise UserError(f"{wrong}; `parlour sessions list` shows them") from None


def plain(value: Any) -> Any:
    """Return *value* as JSON has it: times as ISO 8601, keys as text, records as objects."""
    if isinstance(value, SessionKey):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
