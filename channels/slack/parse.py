"""Slack's payloads as messages, pure and without a library. Some facts need a look-up, so that it takes two steps.

`parse_event` reads the payload; `build_message` adds the sender's profile and whether the thread is followed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from channels.slack.content import SharedContent, attachments, own_text, shared_content
from channels.slack.render import (
    SlackButtonPress,
    command_in,
    is_press,
    mentions,
    parse_press,
    plain_text,
    slash_command_in,
)
from gateway.errors import UnreadableEvent
from gateway.events import (
    UNKNOWN,
    Attachment,
    ChatKind,
    InboundKind,
    InboundMessage,
    QuoteKind,
    Sender,
    SessionKey,
    edit_revision,
)
from gateway.ports.channel import EventOrigin, MembershipChange
from gateway.text import sanitize

# https://docs.slack.dev/reference/events/message: every other subtype is a line of Slack's own, not a person's words.
_SPOKEN = frozenset({"", "file_share", "me_message", "thread_broadcast"})
_TS = re.compile(r"(\d{1,11})\.(\d{1,6})\Z", re.ASCII)
_NOT_PEOPLE = frozenset({"USLACKBOT"})
_BROKEN = (KeyError, IndexError, TypeError, AttributeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackBotIdentity:
    """The bot's identity in the workspace, from auth.test."""

    user: str
    bot: str
    team: str
    handle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackProfile:
    """A sender's profile, from users.info."""

    name: str = ""
    team: str = ""
    is_guest: bool = False
    is_admin: bool = False
    is_bot: bool = False
    timezone: str = ""  # IANA, of the profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedEvent:
    """One event, as far as its payload tells."""

    kind: InboundKind
    chat: str
    thread: str  # the session's thread, "" at the top level
    ts: str  # the message's id; "" where there is none (slash commands)
    at: datetime
    user: str
    team: str = ""  # the sender's workspace
    name: str = ""
    text: str = ""  # as Slack escapes it
    added: str = ""  # tables and the like beside the text, as Slack escapes them
    shared: SharedContent = field(default_factory=SharedContent)
    is_direct: bool = False
    is_bot: bool = False
    is_self: bool = False
    is_foreign: bool = False
    calls_us: bool = False  # our mention is in it, or was before the edit
    calls_others: bool = False  # it begins with somebody else's mention
    is_below_us: bool = False  # a reply in a thread that a message of ours started
    revision: str = ""  # when its author last edited it
    is_change: bool = False  # the event says that it was edited; it was told when it was written
    event_id: str = ""
    files: tuple[Attachment, ...] = ()
    press: SlackButtonPress | None = None
    response_url: str = ""  # of a slash command

    @property
    def whole_text(self) -> str:
        """Everything that names people and chats, as Slack escapes it."""
        return f"{self.text}\n{self.added}\n{self.shared.text}"

    @property
    def place(self) -> str:
        """The chat part of the session key."""
        return f"{self.chat}/{self.thread}" if self.thread else self.chat


def moment(ts: str) -> datetime:
    """Return the time of a message without rounding; raise ValueError for a malformed ts."""
    matched = _TS.match(ts)
    if not matched:
        raise ValueError(f"{ts!r} is no ts")
    return datetime.fromtimestamp(int(matched[1]), UTC) + timedelta(microseconds=int(matched[2].ljust(6, "0")))


def parse_event(
    body: Mapping[str, Any], bot: SlackBotIdentity, *, in_threads: bool, now: datetime
) -> ParsedEvent | None:
    """Return the event, slash command or press of *body*, or None for kinds that are ignored.

    *in_threads*: a message in a channel starts the thread named by its ts. Raises UnreadableEvent.
    """
    try:
        return _read(body, bot, in_threads=in_threads, now=now)
    except _BROKEN as error:
        raise UnreadableEvent(f"no shape that we know: {type(error).__name__}") from error


def _read(body: Mapping[str, Any], bot: SlackBotIdentity, *, in_threads: bool, now: datetime) -> ParsedEvent | None:
    if "command" in body and "event" not in body:
        return _slash(body, bot, now)
    if is_press(body):
        return _parse_button(body, bot, now)
    if body.get("type") != "event_callback":
        return None
    event = body["event"]
    if event["type"] not in ("message", "app_mention"):
        return None
    subtype = event.get("subtype") or ""
    if subtype == "message_changed":
        return _changed(body, event, bot, in_threads=in_threads)
    if subtype == "message_deleted":
        return _deleted(body, event, event.get("previous_message") or {}, bot, in_threads=in_threads)
    if subtype not in _SPOKEN and not (subtype == "bot_message" and "bot_id" in event):
        return None
    return _parse_message(body, event, event, bot, in_threads=in_threads)


def _parse_message(
    body: Mapping[str, Any],
    event: Mapping[str, Any],
    message: Mapping[str, Any],
    bot: SlackBotIdentity,
    *,
    in_threads: bool,
    kind: InboundKind = InboundKind.MESSAGE,
    is_change: bool = False,
    before: str = "",
) -> ParsedEvent:
    user, ts, text = str(message.get("user") or ""), str(message["ts"]), str(message.get("text") or "")
    team = str(message.get("user_team") or message.get("team") or "")
    is_direct = _is_direct(event)
    called = mentions(text)
    return ParsedEvent(
        kind=kind,
        chat=_chat(event["channel"]),
        thread=_thread(message, ts, starts_one=in_threads and not is_direct),
        ts=ts,
        at=moment(ts),
        user=user,
        team=team or bot.team,
        text=text,
        is_direct=is_direct,
        is_bot=bool(message.get("bot_id")) or user in _NOT_PEOPLE,
        is_self=user == bot.user or (bool(bot.bot) and message.get("bot_id") == bot.bot),
        is_foreign=bool(team) and team != bot.team,
        calls_us=bot.user in called or bot.user in mentions(before) or event["type"] == "app_mention",
        calls_others=_begins_elsewhere(text, bot),
        is_below_us=message.get("parent_user_id") == bot.user,
        revision=_revision(message),
        is_change=is_change,
        event_id=str(body.get("event_id") or ""),
        files=attachments(message.get("files") or ()),
        added=own_text(message),
        shared=shared_content(message),
    )


def _chat(chat: object) -> str:
    if not isinstance(chat, str) or not chat:
        raise TypeError("a chat is named by its id")
    return chat


def _revision(message: Mapping[str, Any]) -> str:
    """Return when a person changed their words, "" while they stand as written. History tells it this way alone."""
    edited = message.get("edited") or {}
    if not edited or edited.get("user") != message.get("user"):
        return ""
    return edit_revision(str(edited["ts"]), str(message.get("text") or ""))


def _changed(
    body: Mapping[str, Any], event: Mapping[str, Any], bot: SlackBotIdentity, *, in_threads: bool
) -> ParsedEvent | None:
    """An edit is what a person did to their own words; unfurled links and our own edits come the same way."""
    message, before = event["message"], event.get("previous_message") or {}
    if message.get("subtype") == "tombstone":  # deleted, but the thread below it stays
        return _deleted(body, event, before, bot, in_threads=in_threads)
    edited = message.get("edited") or {}
    if (message.get("subtype") or "") not in _SPOKEN or not edited or edited == before.get("edited"):
        return None
    if edited.get("user") != message.get("user"):
        return None
    parsed = _parse_message(
        body,
        event,
        message,
        bot,
        in_threads=in_threads,
        is_change=True,
        before=str(before.get("text") or ""),
    )
    return None if parsed.is_bot or parsed.is_self else parsed


def _deleted(
    body: Mapping[str, Any],
    event: Mapping[str, Any],
    before: Mapping[str, Any],
    bot: SlackBotIdentity,
    *,
    in_threads: bool,
) -> ParsedEvent | None:
    """Return the deletion of a user's message. Slack may omit the author, whom the journal knows."""
    if (before.get("subtype") or "") not in _SPOKEN:
        return None
    gone = {**before, "ts": event.get("deleted_ts") or before["ts"], "text": "", "files": (), "edited": None}
    parsed = _parse_message(body, event, gone, bot, in_threads=in_threads, kind=InboundKind.DELETION)
    return None if parsed.is_bot or parsed.is_self else parsed


def _slash(body: Mapping[str, Any], bot: SlackBotIdentity, now: datetime) -> ParsedEvent:
    """A slash command has no message; `/parlour stop` is `/stop`."""
    command, rest = str(body["command"]), str(body.get("text") or "").strip()
    own = command.lstrip("/").lower() in (bot.handle.lower(), "parlour")
    text = f"/{(rest or 'help').lstrip('/!')}" if own else f"{command} {rest}".strip()
    team = str(body.get("team_id") or "")
    return ParsedEvent(
        kind=InboundKind.COMMAND,
        chat=_chat(body["channel_id"]),
        thread="",
        ts="",
        at=now,
        user=str(body["user_id"]),
        team=team or bot.team,
        name=str(body.get("user_name") or ""),
        text=text,
        is_direct=str(body["channel_id"]).startswith("D"),
        is_foreign=bool(team) and team != bot.team,
        calls_us=True,
        event_id=str(body["trigger_id"]),
        response_url=str(body.get("response_url") or ""),
    )


def _parse_button(body: Mapping[str, Any], bot: SlackBotIdentity, now: datetime) -> ParsedEvent | None:
    """Return a press as the button's command, sent by the user who pressed."""
    press = parse_press(body)
    if press is None:
        return None
    user = body["user"]
    team = str(user.get("team_id") or "")
    return ParsedEvent(
        kind=InboundKind.BUTTON,
        chat=_chat(press.chat),
        thread=press.thread,
        ts="",
        at=now,
        user=str(user["id"]),
        team=team or bot.team,
        name=str(user.get("name") or user.get("username") or ""),
        text=press.value,
        is_direct=press.chat.startswith("D"),
        is_foreign=bool(team) and team != bot.team,
        calls_us=True,
        event_id=str(body["trigger_id"]),
        press=press,
    )


def _is_direct(event: Mapping[str, Any]) -> bool:
    kind = event.get("channel_type")
    return kind == "im" if kind else str(event["channel"]).startswith("D")


def _thread(message: Mapping[str, Any], ts: str, *, starts_one: bool) -> str:
    above = str(message.get("thread_ts") or "")
    if above and above != ts:
        return above
    return ts if starts_one else ""


def _begins_elsewhere(text: str, bot: SlackBotIdentity) -> bool:
    called = mentions(text)
    return bool(called) and bot.user not in called and text.lstrip().startswith(f"<@{called[0]}")


def build_message(
    parsed: ParsedEvent,
    channel: str,
    bot: SlackBotIdentity,
    person: SlackProfile,
    *,
    is_followed: bool,
    names: Mapping[str, str],
) -> InboundMessage:
    """Return the inbound message of *parsed*. *names* are display names of users, channels and groups by id."""
    sender = Sender(
        id=parsed.user,
        name=person.name or sanitize(parsed.name),
        is_bot=parsed.is_bot or person.is_bot,
        is_self=parsed.is_self,
        is_admin=person.is_admin,
        is_guest=parsed.is_foreign or person.is_guest,
        team=person.team or parsed.team,
        timezone=person.timezone,
    )
    is_ours = parsed.kind in (InboundKind.COMMAND, InboundKind.BUTTON)  # no words that Slack escaped
    names = {**names, bot.user: bot.handle}  # by id: of people, channels and groups
    if not is_ours:
        text = "\n".join(each for each in (plain_text(parsed.text, names), plain_text(parsed.added, names)) if each)
    else:
        text = sanitize(parsed.text)
    message = InboundMessage(
        key=SessionKey(channel, parsed.place),
        message_id=parsed.ts,
        sender=sender,
        text=text,
        command=_command(parsed, bot, names),
        sent_at=parsed.at,
        kind=parsed.kind,
        chat_kind=ChatKind.DIRECT if parsed.is_direct else ChatKind.GROUP,
        account=bot.team,
        bot=bot.handle,
        revision=parsed.revision,
        event_ids=(parsed.event_id,) if parsed.event_id else (),
        is_ephemeral=parsed.kind is InboundKind.COMMAND,
        is_addressed=parsed.is_direct or parsed.calls_us or is_followed,
        reply_to=parsed.press.ts if parsed.press else "",
        mentioned=tuple(user for user in mentions(parsed.text) if user != bot.user),
        attachments=parsed.files,
    )
    return replace(message, **_shared_fields(parsed, bot, names, has_text=bool(text)))


def _shared_fields(
    parsed: ParsedEvent, bot: SlackBotIdentity, names: Mapping[str, str], *, has_text: bool
) -> dict[str, Any]:
    """Return the fields of messages that are shared: a quote, or the whole message if its sender added nothing."""
    shared, text = parsed.shared, plain_text(parsed.shared.text, names)
    if not (text or shared.files):
        return {}
    by, name = "" if shared.by == bot.user else shared.by, sanitize(shared.name)
    if has_text or parsed.files:
        fields = {"quoted": text, "quoted_by": by, "quoted_name": name, "quoted_files": shared.files}
        source = {"reply_to": shared.ts} if shared.chat == parsed.chat else {}
        return {**fields, **source, "quote_kind": QuoteKind.SHARED}
    forwarded = {} if by == parsed.user else {"is_forwarded": True, "forwarded_from": name or UNKNOWN}
    return {"text": text, "attachments": shared.files, **forwarded}


def _command(parsed: ParsedEvent, bot: SlackBotIdentity, names: Mapping[str, str]) -> str:
    match parsed.kind:
        case InboundKind.BUTTON:
            return sanitize(parsed.text)
        case InboundKind.COMMAND:
            return slash_command_in(parsed.text, names)
        case _:
            return command_in(parsed.text, bot.user, bot.handle, names)


_IN = frozenset({"member_joined_channel"})
# The first of what is said of everybody, the others of us alone (docs.slack.dev/reference/events).
_OUT = frozenset({"member_left_channel", "channel_left", "group_left"})


def parse_membership(body: Mapping[str, Any], *, channel: str, bot: SlackBotIdentity) -> MembershipChange | None:
    """Return the channel that we were added to, or are gone from; None for any other event. Raises Unreadable.

    Slack says no title, and who added us by id alone.
    """
    event = body.get("event")
    if not isinstance(event, dict) or event.get("user", bot.user) != bot.user:
        return None
    kind = str(event.get("type"))
    if kind not in _IN | _OUT:
        return None
    chat, by = event.get("channel"), event.get("inviter") or event.get("actor_id")
    if not (isinstance(chat, str) and chat):
        raise UnreadableEvent(f"{kind} without a channel")
    return MembershipChange(
        channel=channel,
        id=f"place/{body.get('event_id') or event.get('event_ts') or chat}",
        chat=chat,
        team=bot.team,
        by=Sender(id=by, team=bot.team) if isinstance(by, str) and by else None,
        is_gone=kind in _OUT,
    )


def changed_user(body: Mapping[str, Any]) -> str:
    """Return of whom Slack says that they changed (a guest, an admin, removed), or ""; never raises."""
    event = body.get("event")
    if not isinstance(event, dict) or event.get("type") != "user_change":
        return ""
    user = event.get("user")
    found = user.get("id") if isinstance(user, dict) else ""
    return found if isinstance(found, str) else ""


# -- envelope --------------------------------------------------------------------------------------
# Facts about a payload before it is parsed: its id, chat, user and origin. These functions never raise.


def event_of(body: Mapping[str, Any], raw: str) -> str:
    """Return an id that is the same when Slack redelivers *body*.

    It is the event or trigger id; for a message of the history the kind, the chat and the ts.
    """
    for name in ("event_id", "trigger_id"):
        if isinstance(body.get(name), str) and body[name]:
            return str(body[name])
    event = body.get("event")
    if isinstance(event, dict):
        return "/".join(str(event.get(name, "")) for name in ("type", "channel", "ts"))
    return hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def chat_of(body: Mapping[str, Any]) -> str:
    """Return the chat of *body*, "" if it is unknown."""
    event = body.get("event")
    container = body.get("container")  # of a press
    place = container if isinstance(container, dict) else body
    found = event.get("channel") if isinstance(event, dict) else place.get("channel_id")
    return found if isinstance(found, str) else ""


def user_of(body: Mapping[str, Any]) -> str:
    """Return the user who caused *body*, "" if it is unknown."""
    event = body.get("event")
    pressed = body.get("user")
    if isinstance(event, dict):
        message = event.get("message")  # of an edit
        found = message.get("user") if isinstance(message, dict) else event.get("user")
    else:
        found = pressed.get("id") if isinstance(pressed, dict) else body.get("user_id")
    return found if isinstance(found, str) else ""


def origin_of(body: Mapping[str, Any]) -> EventOrigin | None:
    """Return the origin of a message, or None for other events."""
    event = body.get("event")
    if not isinstance(event, dict) or event.get("type") not in ("message", "app_mention"):
        return None
    chat, user, thread, ts = chat_of(body), user_of(body), event.get("thread_ts"), event.get("ts")
    if not chat or not user:
        return None
    is_direct = chat.startswith("D")
    place = f"{chat}/{thread}" if isinstance(thread, str) and thread and not is_direct else chat
    return EventOrigin(chat=place, sender=user, message_id=ts if isinstance(ts, str) else "", is_direct=is_direct)


def raw_of(body: Mapping[str, Any]) -> str:
    """Return *body* as text, for the quarantine."""
    return json.dumps(body)
