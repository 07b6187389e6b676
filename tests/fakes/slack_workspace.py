"""A Slack workspace as it stands: who is in it, what they write, and which events that makes."""

from __future__ import annotations

import asyncio
import html
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.fakes.conditions import wait_for_news

BOT_TOKEN = "xoxb-1111111111-2222222222-fakefakefake"
APP_TOKEN = "xapp-1-A0PARLOUR-3333333333-fakefakefake"
TEAM, BOT_USER, BOT_ID = "T0HOME", "U0PARLOUR", "B0PARLOUR"
ANN, BOB, EVE = "U0ANN", "U0BOB", "U0EVE"
DM, ROOM, SECRET = "D0ANN", "C0ROOM", "C0SECRET"
ALL_SCOPES = frozenset(
    (
        *("app_mentions:read", "chat:write", "commands", "im:history", "channels:history", "groups:history"),
        *("mpim:history", "users:read", "reactions:write", "assistant:write", "metadata.message:read"),
        *("files:read", "files:write", "channels:read", "groups:read", "usergroups:read"),
    )
)


@dataclass(slots=True, kw_only=True)
class SlackFault:
    """What one call shall suffer instead of, or after, being done."""

    status: int = 200
    error: str = ""
    retry_after: int = 0
    does: bool = False  # it is done all the same
    drops: bool = False  # and the connection breaks before the answer


@dataclass(slots=True)
class FakeSlackChat:
    """A conversation."""

    id: str
    kind: str  # im, channel, group, mpim
    members: set[str]
    messages: list[dict[str, Any]] = field(default_factory=list)
    whispers: list[dict[str, Any]] = field(default_factory=list)
    is_archived: bool = False
    name: str = ""
    creator: str = ""


class SlackError(Exception):
    """An answer with `ok: false`."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.answer = {"ok": False, "error": error, **more}


class SlackWorkspace:
    """One workspace with one app."""

    def __init__(self) -> None:
        self.base = ""
        self.scopes = set(ALL_SCOPES)
        self.bot_token, self.app_token = BOT_TOKEN, APP_TOKEN
        self.places = {
            DM: FakeSlackChat(DM, "im", {ANN, BOT_USER}),
            ROOM: FakeSlackChat(ROOM, "channel", {ANN, BOB, EVE, BOT_USER}),
            SECRET: FakeSlackChat(SECRET, "group", {BOB}),
        }
        self.users: dict[str, dict[str, Any]] = {
            ANN: {"id": ANN, "team_id": TEAM, "profile": {"display_name": "Ann"}, "is_admin": True},
            BOB: {"id": BOB, "team_id": TEAM, "profile": {"display_name": "", "real_name": "Bob"}},
            EVE: {"id": EVE, "team_id": TEAM, "profile": {"display_name": "Eve"}},
        }
        self.groups: dict[str, str] = {}  # handles of user groups, by id
        self.responses: dict[str, list[dict[str, Any]]] = {}  # at response addresses of slash commands, by trigger
        self.faults: dict[str, list[SlackFault]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.reactions: set[tuple[str, str, str]] = set()
        self.statuses: dict[tuple[str, str], str] = {}
        self._numbers = count(1)
        self._last = 0  # microseconds
        self.ago = 0.0  # seconds that the workspace's clock is behind
        self._changed = asyncio.Event()

    # -- what a test looks at ------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return when *holds* holds; looked at whenever anything happens here."""
        while not holds():
            await wait_for_news(self._changed)

    async def wait_changed(self) -> None:
        """Return at the next thing that happens."""
        await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def shown(self, place: str, thread: str = "", *, of: str = BOT_USER) -> list[str]:
        """Return what somebody's messages say to people, oldest first."""
        return [
            html.unescape(message["text"])
            for message in self.places[place].messages
            if message["user"] == of and message.get("thread_ts", "") == thread
        ]

    def called(self, method: str) -> list[dict[str, Any]]:
        """Return the arguments of every call of *method*."""
        return [arguments for name, arguments in self.calls if name == method]

    # -- what people do ------------------------------------------------------------------------

    def say(self, place: str, user: str, text: str, *, thread: str = "", quiet: bool = False, **more: Any) -> str:
        """Let somebody write; return the ts. *quiet*: nobody is told, as while the app is uninstalled or down."""
        ts = more.pop("ts", "") or self._ts()
        message = {"type": "message", "user": user, "text": text, "ts": ts, "team": TEAM, **more}
        if thread:
            message["thread_ts"] = thread
            parent = next((known for known in self.places[place].messages if known["ts"] == thread), None)
            if parent is not None:
                message["parent_user_id"] = parent["user"]
        self.places[place].messages.append(message)
        if not quiet:
            self.tell(place, message)
        return ts

    def tell(self, place: str, message: Mapping[str, Any]) -> None:
        """Send the events that a message makes: `message`, and `app_mention` where we are named."""
        where = {"channel": place, "event_ts": message["ts"]}
        self.event({**message, **where, "channel_type": self.places[place].kind})
        if f"<@{BOT_USER}" in message["text"] and self.places[place].kind != "im":
            self.event({**message, **where, "type": "app_mention"})

    def edit(self, place: str, ts: str, text: str, *, quiet: bool = False) -> None:
        """Let the author change a message."""
        message = self._message(place, ts)
        before = dict(message)
        message.update(text=text, edited={"user": message["user"], "ts": self._ts()})
        if not quiet:
            self._changed_event(place, message, before)

    def unfurl(self, place: str, ts: str) -> None:
        """Let Slack add a preview to a message, which tells us that it changed."""
        message = self._message(place, ts)
        before = dict(message)
        message["attachments"] = [{"from_url": "https://example.org/", "id": 1}]
        self._changed_event(place, message, before)

    def _changed_event(self, place: str, message: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        self.event(
            {
                "type": "message",
                "subtype": "message_changed",
                "hidden": True,
                "channel": place,
                "channel_type": self.places[place].kind,
                "ts": self._ts(),
                "message": dict(message),
                "previous_message": dict(before),
            }
        )

    def delete(self, place: str, ts: str, *, quiet: bool = False) -> None:
        """Let the author delete a message."""
        message = self._message(place, ts)
        self.places[place].messages.remove(message)
        if quiet:
            return
        self.event(
            {
                "type": "message",
                "subtype": "message_deleted",
                "hidden": True,
                "channel": place,
                "channel_type": self.places[place].kind,
                "ts": self._ts(),
                "deleted_ts": ts,
                "previous_message": message,
            }
        )

    def slash(self, place: str, user: str, command: str, text: str = "") -> str:
        """Let somebody use a slash command; return its trigger id."""
        trigger = f"{next(self._numbers)}.fake"
        payload = {"command": command, "text": text, "user_id": user, "user_name": "ann", "team_id": TEAM}
        payload |= {"channel_id": place, "trigger_id": trigger, "response_url": f"{self.base}/respond/{trigger}"}
        self._send("slash_commands", payload)
        return trigger

    def hire(self, number: int) -> list[str]:
        """Let so many people join the workspace and its channel; return their ids. Each has a direct chat."""
        users = [f"U0TEAM{n:03d}" for n in range(number)]
        for user in users:
            self.users[user] = {"id": user, "team_id": TEAM, "profile": {"display_name": user.title()}}
            self.places[ROOM].members.add(user)
            self.places[f"D{user[1:]}"] = FakeSlackChat(f"D{user[1:]}", "im", {user, BOT_USER})
        return users

    def invite(self, place: str, by: str = "") -> str:
        """Let somebody add the app to a channel; return the event's id."""
        self.places[place].members.add(BOT_USER)
        event = {"type": "member_joined_channel", "user": BOT_USER, "channel": place, "channel_type": "C", "team": TEAM}
        return self.event({**event, **({"inviter": by} if by else {}), "event_ts": self._ts()})

    def put_out(self, place: str, by: str) -> str:
        """Let somebody remove the app from a channel; return the event's id."""
        self.places[place].members.discard(BOT_USER)
        kind = "group_left" if self.places[place].kind == "group" else "channel_left"
        return self.event({"type": kind, "channel": place, "actor_id": by, "event_ts": self._ts()})

    def change_user(self, user: str, **fields: Any) -> None:
        """Change what the workspace holds of somebody, and tell it where the app subscribes to that."""
        self.users[user] |= fields
        self.event({"type": "user_change", "user": dict(self.users[user]), "event_ts": self._ts()})

    def event(self, event: Mapping[str, Any], *, event_id: str = "") -> str:
        """Deliver *event*; return its id."""
        event_id = event_id or f"Ev{next(self._numbers):08d}"
        payload = {"type": "event_callback", "team_id": TEAM, "api_app_id": "A0PARLOUR", "event_id": event_id}
        self._send("events_api", {**payload, "event": dict(event)})
        return event_id

    def _ts(self) -> str:
        self._last = max(self._last + 1, time.time_ns() // 1_000 - int(self.ago * 1_000_000))
        return f"{self._last // 1_000_000}.{self._last % 1_000_000:06d}"

    def _message(self, place: str, ts: str) -> dict[str, Any]:
        return next(message for message in self.places[place].messages if message["ts"] == ts)

    def _send(self, kind: str, payload: dict[str, Any]) -> None:
        """Deliver a payload; how is the server's affair."""
        raise NotImplementedError
