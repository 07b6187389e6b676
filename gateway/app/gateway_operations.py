"""Operator commands as async generators of lines, which are JSON objects.

The operator API serves them while a gateway runs. Without one, a command opens the home and runs the same generators
itself. The command line formats the lines.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable
from zoneinfo import ZoneInfo

from agent.reminders.reminder import REMIND, reminders_in
from gateway.access.refusal_log import ChannelRefusals
from gateway.app.access import AdmissionRule, has_lost_access
from gateway.app.operation_group import OperationGroup, by_owner, operation, plain, target_file
from gateway.control import ControlConnection, Line
from gateway.errors import FileUnavailable, StoreUnavailable, UserError
from gateway.events import SessionKey, short_turn_id
from gateway.i18n.missing_abilities import describe_models
from gateway.i18n.time_zones import find_midnight
from gateway.ports import Channel
from gateway.ports.channel_support import SupportsLogin
from gateway.ports.entry_points import program_version
from gateway.quarantine import list_events
from gateway.settings.channel_blocks import PAGE, TERMINAL
from gateway.store.jobs import SqlJobs
from gateway.store_watcher import DEADLINE, one_line

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime

Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any] | None]]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]

_MOST_LINES = 1_000
_MOST_DEAD = 20
_MOST_DELAYED = 20  # chats
_FILE_PIECE = 512 * 1024  # bytes of a file in one line
NO_GATEWAY = "no gateway is running; start one with `parlour run`"

_AT_ONCE = 200  # reminders that are judged before other work gets a chance


@runtime_checkable
class SupportsAttach(Protocol):
    """A channel that serves terminals."""

    async def attach(self, receive: Receive, send: Send) -> None:
        """Serve one terminal until it disconnects."""


def _not_in_quarantine(name: str) -> UserError:
    return UserError(f"there is no quarantined event {name!r}; `parlour quarantine list` lists them")


class GatewayOperations(OperationGroup):
    """The operations over an open gateway: its status, sessions, quarantine, backup and logins to the page."""

    def __init__(self, app: Runtime) -> None:
        super().__init__(app)
        self._started_at = datetime.now(UTC)

    @operation("status", by_owner())
    async def status(self) -> AsyncIterator[Line]:
        """Yield one line: version, uptime, channel states, queue depths, jobs, rejections and dead letters.

        While the store does not answer, the line has its cause and lacks all that is stored.
        """
        app, state = self._app, self._app.store_watcher.state
        known = {
            "version": program_version(),
            "home": str(app.home.path),
            "gateway": "running" if app.channels else "not running",
            "since": plain(self._started_at),
            "channels": dict(app.supervisor.states()),
            "unheard": {name: _refusal_counts(each) for name, each in app.refusals.summary().items()},
        }
        cause, since = (state.cause, state.since) if state is not None else ("", datetime.now(UTC))
        if not cause:
            try:
                async with asyncio.timeout(DEADLINE.total_seconds()):
                    known |= plain(await self._stored_status())
            except (StoreUnavailable, TimeoutError) as error:
                cause = one_line(error) if isinstance(error, StoreUnavailable) else "it does not answer"
                since = datetime.now(UTC)
        store = {"writable": False, "since": plain(since), "cause": cause} if cause else {"writable": True}
        yield {**known, "store": store}

    async def _stored_status(self) -> Line:
        """Return the part of the status that the store has a share in. Raises StoreUnavailable."""
        app, zone, now = self._app, self._app.settings.timezone, self._app.now()
        delayed, requests = app.dispatcher.delayed(), app.access.pairing.pending_requests()
        places, error = sum(each.is_place for each in requests), app.recall.last_error()
        midnight = find_midnight(now, ZoneInfo(zone))
        return {
            **await app.store.journal.depth(),
            "alerts": await app.alerts.alert_statuses(),
            "delayed_chats": len(delayed),
            "delayed": delayed[:_MOST_DELAYED],
            **({"page": app.web.url} if app.channels else {}),
            "jobs": await app.background.work(),
            "background_budget": await app.background.budget(),
            "today": await app.store.usage.by("day", since=midnight, until=now, zone=zone),
            "orphaned_reminders": await count_orphaned_reminders(app.store.jobs, app.access.judge, now),
            "waits": {"people": len(requests) - places, "places": places},
            "models": describe_models(app.models.default.facts.facts()),
            **({"search": f"keywords only: {error}"} if error else {}),
            "dead_letters": await app.store.outbox.dead(limit=_MOST_DEAD),
        }

    @operation("sessions list")
    async def list_sessions(self) -> AsyncIterator[Line]:
        """Yield one line per session, the most recently used first."""
        for session in await self._app.memory.sessions.all():
            yield plain(session)

    @operation("sessions show")
    async def show_session(self, key: str = "", limit: int = 50) -> AsyncIterator[Line]:
        """Yield the newest messages of one session, as people saw them."""
        for line in await self._app.memory.sessions.displayed_messages(_parse_key(key), limit=min(limit, _MOST_LINES)):
            yield plain(line)

    @operation("send")
    async def send(self, key: str = "", text: str = "") -> AsyncIterator[Line]:
        """Submit a text to a session as a job; it passes all nine stages."""
        if not text.strip():
            raise UserError("the text to send is missing; give one")
        turn = await self._app.submit(_parse_key(key), text)
        yield {"turn": turn, "reference": short_turn_id(turn), "running": bool(self._app.channels)}

    @operation("chat file")
    async def read_file(self, blob: str) -> AsyncIterator[Line]:
        """Yield the bytes of an attachment in Base64, a piece in a line: the terminal saves the files that it gets."""
        try:
            async for piece in self._app.blobs.stream(blob):
                for start in range(0, len(piece), _FILE_PIECE):
                    yield {"data": base64.b64encode(piece[start : start + _FILE_PIECE]).decode("ascii")}
        except FileUnavailable as error:
            raise UserError(f"the file cannot be read: {error}") from error

    @operation("turn")
    async def turn(self, reference: str = "") -> AsyncIterator[Line]:
        """Yield the trace of one turn, also for the reference of one of its calls."""
        yield plain(await self.find_trace(reference))

    @operation("backup")
    async def backup(self, file: str = "") -> AsyncIterator[Line]:
        """Write a backup. The client makes the path absolute."""
        target = target_file(file)
        result = await self._app.backup(target)
        yield {
            "file": str(result.target),
            "files": result.files,
            "size": result.size,
            "turns": result.turns,
            "people": result.people,
            "left_out": list(result.left_out),
        }

    @operation("prune")
    async def prune(self) -> AsyncIterator[Line]:
        """Remove expired rows, quarantined events, deleted files of workspaces and results of tools."""
        yield {
            "rows": await self._app.store.prune(),
            "events": await self._app.quarantine.prune(),
            "files": await self._app.memory.workspaces.expire_trash() + await self._app.pages.prune(),
        }

    @operation("quarantine list")
    async def list_quarantine(self) -> AsyncIterator[Line]:
        """Yield one line per quarantined event, the newest first, without its content."""
        for event in await asyncio.to_thread(list_events, self._app.home.quarantine):
            yield {"name": event.file.stem, **plain(event)}

    @operation("quarantine drop")
    async def drop_from_quarantine(self, name: str = "") -> AsyncIterator[Line]:
        """Remove one event, so that it is handled when its platform delivers it again."""
        if not await self._app.quarantine.drop(name):
            raise _not_in_quarantine(name)
        yield {"name": name}

    @operation("quarantine replay")
    async def replay_from_quarantine(self, name: str = "") -> AsyncIterator[Line]:
        """Hand one event to its channel as if it had just arrived, and remove it on success."""
        if not self._app.channels:
            raise self._absent("no channel is connected")
        try:
            is_known = await self._app.intake.replay(name, self._app.channels)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - an operator's boundary; its text may quote the event
            raise UserError(f"{name} failed again ({type(error).__name__}) and stays in quarantine") from None
        if not is_known:
            raise _not_in_quarantine(name)
        yield {"name": name}

    async def attach(self, _: Line, connection: ControlConnection) -> None:
        """Attach a terminal to the console channel until it disconnects."""
        consoles = [channel for channel in self._channels(TERMINAL) if isinstance(channel, SupportsAttach)]
        if not consoles:
            raise self._absent("the console is disabled; set channels.console.enabled to true")
        await consoles[0].attach(connection.receive, connection.send)

    def _channels(self, first: str) -> list[Channel]:
        """Return the open channels, the one named *first* before the others."""
        return [channel for _, channel in sorted(self._app.channels.items(), key=lambda item: item[0] != first)]

    def _absent(self, switched_off: str) -> UserError:
        return UserError(switched_off if self._app.channels else NO_GATEWAY)

    @operation("web login")
    async def login(self, as_: str = "") -> AsyncIterator[Line]:
        """Yield a login code, the page's address and, where it has a public one, a link with the code."""
        page = self._page()
        code = await page.issue_code(as_)
        public = self._app.settings.web.public_url
        below = "" if page.name == PAGE else f"{page.name}/"
        # A fragment stays in the browser: no log of a server or proxy contains it.
        link = f"{public.rstrip('/')}/{below}#code={code}" if public else ""
        address = f"{(public or self._app.web.url).rstrip('/')}/{below}"
        yield {"code": code, "as": as_, "link": link, "page": address}

    @operation("web logins", by_owner())
    async def logins(self) -> AsyncIterator[Line]:
        """Yield one line per person who is logged in."""
        for each in await self._page().logged_in():
            yield dict(each)

    @operation("web logout")
    async def logout(self, who: str = "") -> AsyncIterator[Line]:
        """End every login of one person."""
        browsers = await self._page().log_out(who)
        if not browsers:
            raise UserError(
                f"no user {who!r} is logged in or has a valid login code; `parlour web logins` lists all logins"
            )
        yield {"who": who, "browsers": browsers}

    def _page(self) -> SupportsLogin:
        pages = [channel for channel in self._channels(PAGE) if isinstance(channel, SupportsLogin)]
        if not pages:
            raise self._absent("the page is disabled; set channels.web.enabled to true")
        return pages[0]


def _refusal_counts(refusals: ChannelRefusals) -> Line:
    reasons = dict(refusals.reasons.most_common())
    return {
        "since": plain(refusals.since),
        "messages": refusals.messages,
        "people": len(refusals.people),
        "reasons": reasons,
    }


def _parse_key(key: str) -> SessionKey:
    try:
        return SessionKey.parse(key)
    except ValueError as error:
        raise UserError(f"{error}; `parlour sessions list` lists them") from None


async def count_orphaned_reminders(jobs: SqlJobs, judge: AdmissionRule, now: datetime) -> Sequence[Mapping[str, Any]]:
    """Return ``{"who": "channel:user_id", "count": n}`` for each person who has reminders and no access."""
    found = [each for each in reminders_in(await jobs.pending_of(REMIND)) if not each.is_fired]
    verdicts: dict[tuple[str, str], bool] = {}
    counts: Counter[str] = Counter()
    for n, reminder in enumerate(found, 1):
        place = (str(reminder.key), reminder.by)
        if place not in verdicts:
            verdicts[place] = has_lost_access(judge, reminder.message("", now, reminder.kind))
        if verdicts[place]:
            counts[f"{reminder.key.channel}:{reminder.by}"] += 1
        if n % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return [{"who": who, "count": count} for who, count in sorted(counts.items())]
