"""Events exchanged by channels, gateway and agent: frozen, typed, standard library only."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

_BLOCK = re.compile(r"[a-z][a-z0-9-]*\Z")
_PRESSED = re.compile(r"/[a-z][ -~]{0,62}\Z")  # 64 bytes are the least that a platform takes with a button
_LABEL = 40  # characters
NAME_BYTES = 200  # of a quoted name: room for `.jsonl.corrupt` under the usual limit of 255
_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_FILLERS = frozenset("\u034f\u115f\u1160\u2800\u3164\ufe0e\ufe0f\uffa0")  # letters and marks that show nothing

UNKNOWN = "?"  # author, if the platform does not name one


@dataclass(frozen=True, slots=True, order=True)
class SessionKey:
    """Identity of a conversation: ``channel:chat_id``, split at the first colon only.

    ``channel`` is the name of a configuration block. A thread, topic or forum post is ``<parent>/<thread>``, so that
    the key tells its parent chat.
    """

    channel: str
    chat: str

    def __post_init__(self) -> None:
        if not _BLOCK.match(self.channel):
            raise ValueError(f"a channel name is [a-z][a-z0-9-]*, not {self.channel!r}")
        if not self.chat:
            raise ValueError("a session key needs a chat id after the colon")

    @classmethod
    def parse(cls, text: str) -> SessionKey:
        """Parse ``channel:chat_id``; raise ValueError for any other text."""
        channel, colon, chat = text.partition(":")
        if not colon:
            raise ValueError(f"a session key is channel:chat_id, not {text!r}")
        return cls(channel, chat)

    @property
    def parent(self) -> SessionKey:
        """The chat a thread belongs to; for other chats the key itself."""
        parent, slash, thread = self.chat.partition("/")
        return SessionKey(self.channel, parent) if slash and parent and thread else self

    @property
    def thread(self) -> str:
        """The thread's id, or an empty string."""
        parent, slash, thread = self.chat.partition("/")
        return thread if slash and parent and thread else ""

    def __str__(self) -> str:
        return f"{self.channel}:{self.chat}"


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class PlatformAccount:
    """One user on one platform, whichever of its channels they write to.

    Text form: ``<kind>:[<team>:]<id>``. Colons and percent signs within a team or an id are percent-encoded, so that
    the text is never ambiguous. Ids without either look as they do on the platform.
    """

    kind: str  # platform: telegram, slack
    id: str  # user id on the platform
    team: str = ""  # Slack workspace; empty on platforms whose plugin does not declare `has_teams`
    stored_name: str = ""  # a name from which team and id cannot be read back; otherwise empty

    @classmethod
    def parse(cls, text: str) -> PlatformAccount:
        """Parse the text form. Texts without a colon are the id of an account of an unknown platform."""
        kind, colon, rest = text.partition(":")
        if not colon:
            return cls(kind="", id=_decode_colons(text))
        team, colon, user = rest.partition(":")
        if not colon:
            return cls(kind=kind, id=_decode_colons(rest))
        return cls(kind=kind, team=_decode_colons(team), id=_decode_colons(user))

    @classmethod
    @lru_cache(maxsize=4096)
    def from_name(cls, name: str) -> PlatformAccount:
        """Undo `name`. A shortened name (beyond 200 bytes) is kept, because the id cannot be read from it."""
        account = cls.parse(unquote(name))
        return account if account.name == name else replace(account, stored_name=name)

    @classmethod
    def from_input(cls, text: str, *, has_teams: Callable[[str], bool]) -> PlatformAccount:
        """Read an account as people type it: as `label` formats it, or as `name`.

        *has_teams* returns True for platforms whose user ids belong to teams.
        """
        if "%3a" in text:
            return cls.from_name(text)
        kind, _, rest = text.partition(":")
        team, colon, user = rest.partition(":")
        return cls(kind=kind, team=team, id=user) if colon and has_teams(kind) else cls(kind=kind, id=rest)

    @property
    def name(self) -> str:
        """The account as a file name: the folder of the person that it names, and its key in links."""
        return self.stored_name or quote_file_name(str(self))

    @property
    def label(self) -> str:
        """The account as people write it, colons as they are."""
        return ":".join(part for part in (self.kind, self.team, self.id) if part)

    @property
    def user(self) -> PlatformAccount:
        """The account without its team, as settings and decisions name it."""
        return PlatformAccount(kind=self.kind, id=self.id)

    def __str__(self) -> str:
        return _format_account(self.kind, self.team, self.id)

    def __eq__(self, other: object) -> bool:
        """Compare names: an account that was read from a shortened name lacks its id."""
        return self.name == other.name if isinstance(other, PlatformAccount) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)


@lru_cache(maxsize=4_096)
def _format_account(*parts: str) -> str:
    return ":".join(_encode_colons(part) for part in parts if part)


def _encode_colons(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3a")


def _decode_colons(text: str) -> str:
    return text.replace("%3a", ":").replace("%25", "%")


@lru_cache(maxsize=4_096)
def quote_file_name(text: str) -> str:
    """Return a file name for *text*: two texts never share one, and no file system confuses two of them.

    Everything but ``a-z 0-9 - _ .`` is ``%`` and lower-case hex (leading dots too). A name beyond
    200 bytes is its beginning, ``%-`` (which quoting never makes) and a hash of the whole.
    """
    data = text.encode("utf-8", "surrogatepass")
    dots = len(data) - len(data.lstrip(b"."))
    pieces = [chr(byte) if byte in _PLAIN_BYTES and n >= dots else f"%{byte:02x}" for n, byte in enumerate(data)]
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


class ChatKind(StrEnum):
    """Readers of a chat: one person, or several."""

    DIRECT = "direct"
    GROUP = "group"


class InboundKind(StrEnum):
    """Kind of an inbound event."""

    MESSAGE = "message"  # also an edit: the same message_id with another revision
    COMMAND = "command"  # a message that is a command of the bot; never merged
    DELETION = "deletion"  # message_id is the deleted message's
    BUTTON = "button"  # a press: `command` is the button's, `message_id` empty, `reply_to` the button's message
    JOB = "job"  # proactive: a retry, a reminder, `parlour send`; message_id is "job:<id>"


class Role(StrEnum):
    """Rights of a sender in a chat; each role includes the ones before it."""

    MEMBER = "member"
    ADMIN = "admin"
    OWNER = "owner"

    def covers(self, needed: Role) -> bool:
        """Return True if this role includes the rights of *needed*."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sender of a message, by the platform's stable id. Display names never decide anything."""

    id: str
    name: str = ""
    is_bot: bool = False
    is_self: bool = False
    is_admin: bool = False  # the platform's admin of this chat
    is_guest: bool = False  # Slack guest or foreign workspace: admitted only by id
    roles: tuple[str, ...] = ()  # Discord role ids
    team: str = ""  # Slack workspace
    timezone: str = ""  # IANA, as the platform's profile has it; decides nothing, see gateway/chat_locales.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file as a fact. ``blob`` names the stored bytes, ``<scope>/<sha256>``; empty until there are any."""

    kind: str  # image, voice, audio, video, document
    name: str
    size: int  # bytes
    media_type: str = ""
    url: str = ""  # the platform's address or id of it, for its own channel alone to follow
    blob: str = ""
    caption: str = ""
    question: str = ""  # id of the question whose arguments it shows: it ends if the file cannot be sent


class QuoteKind(StrEnum):
    """How a message refers to what it quotes."""

    ANSWERED = "answered"  # a reply
    SHARED = "shared"  # another message is shown in it
    INSTRUCTIONS = "instructions"  # of the program that its sender writes with, for this conversation; their own words


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """One user's message or action, in one shape for every platform."""

    key: SessionKey
    message_id: str  # unique within key; a redelivery repeats it
    sender: Sender
    text: str  # as people read it, names written out; nothing is decided by it
    sent_at: datetime  # the platform's clock, aware UTC
    kind: InboundKind = InboundKind.MESSAGE
    command: str = ""  # the command as typed, see `gateway.text.find_command`, or the button's
    chat_kind: ChatKind = ChatKind.DIRECT
    account: str = ""  # receiving bot account, if a channel can have several
    bot: str = ""  # our own handle there, as people type it after an @
    revision: str = ""  # another revision of a known message_id is an edit; it begins with the edit's time
    event_ids: tuple[str, ...] = ()  # decide only where there is no message_id
    is_ephemeral: bool = False  # a slash command: its sender alone saw it typed, and sees the answer
    is_addressed: bool = False  # mentions us, replies to us, or is in a thread we follow
    guild: str = ""  # Discord server
    is_private: bool = False  # a thread that fewer people read than its parent chat: its scope is its own
    album: str = ""  # parts of one album share it
    reply_to: str = ""  # message_id this one answers
    replaces: str = ""  # message_id of an earlier message, which with all after it is said anew; a turn of its own
    mentioned: tuple[str, ...] = ()  # ids of mentioned users in order, without the bot's
    quoted: str = ""  # text of the message it answers or shares, or a description of one without text
    quoted_by: str = ""  # author of `quoted` and `quoted_files`: a person's user id, UNKNOWN, or "" for the bot itself
    quoted_name: str = ""  # display name of that author, if the platform tells
    quoted_files: tuple[Attachment, ...] = ()  # files of the message it answers or shares
    quote_kind: QuoteKind = QuoteKind.ANSWERED
    is_forwarded: bool = False  # `text` and `attachments` were forwarded from another author
    forwarded_from: str = ""  # display name of that author; UNKNOWN if a forward does not tell
    attachments: tuple[Attachment, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to read: neither text nor files, quoted ones included.

        Another version of a message keeps its files, so it is not empty without text.
        """
        has_text = _is_visible(self.text) or _is_visible(self.quoted)
        return not (has_text or self.attachments or self.quoted_files or self.replaces)

    @property
    def logical_key(self) -> str:
        """The key of deduplication: ``chat/message id``, else the event id."""
        if self.message_id:
            return f"{self.key.chat}/{self.message_id}"
        return f"event/{self.event_ids[0]}" if self.event_ids else f"event/{self.sent_at.isoformat()}"


def _is_visible(text: str) -> bool:
    """Return True if *text* has a character that people see. One that this Python does not know may be an emoji."""
    return any(each not in _FILLERS and unicodedata.category(each) not in _UNSEEN for each in text)


def edit_revision(at: str, words: str) -> str:
    """Return the revision of an edit that made the text *words* at the time *at*, in seconds.

    Some platforms count whole seconds. The digest of *words* keeps two edits within one second apart.
    """
    return f"{at}/{hashlib.sha256(words.encode(errors='replace')).hexdigest()[:8]}"


def edit_time(revision: str) -> float:
    """Return the time of *revision* in seconds since 1970; 0.0 if it names none, as an original's does not."""
    at = revision.partition("/")[0]
    try:
        return float(at) if at.replace(".", "", 1).isdigit() else datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return 0.0


@dataclass(frozen=True, slots=True)
class MessageButton:
    """A button below a message. A press is an inbound message of its sender with this *command*.

    The command is made by the gateway; it never holds text of users or models.
    """

    label: str  # from the catalogue
    command: str
    row: int = 0  # buttons of one row are side by side

    def __post_init__(self) -> None:
        if not _PRESSED.match(self.command):
            raise ValueError("a button stands for a command of 64 printable ASCII characters at most")
        if not self.label or len(self.label) > _LABEL:
            raise ValueError(f"a button's label has 1 to {_LABEL} characters")


class OutboundKind(StrEnum):
    """Kind of an outbox row."""

    PREVIEW = "preview"  # row 0: the text so far, edited in place
    ANSWER = "answer"
    NOTICE = "notice"  # a gateway message: refusals, failures, command output


@dataclass(frozen=True, slots=True)
class AnswerSource:
    """A web page or a file that an answer was made from. Its title is others' text: never markup."""

    url: str  # of a file: `chat-file:`, its name and its place; nothing opens it
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundMessage:
    """One message to a chat, in Markdown, before it is cut for a platform."""

    id: str  # "<turn>.<row>", so that enqueuing is idempotent
    key: SessionKey
    text: str
    kind: OutboundKind = OutboundKind.ANSWER
    reply_to: str = ""  # the platform's message id to answer to
    visible_to: str = ""  # sender id, when only that person may see it
    chat_kind: ChatKind = ChatKind.DIRECT
    attachments: tuple[Attachment, ...] = ()  # sent after the text, in this order, each a part of its own
    choices: tuple[MessageButton, ...] = ()  # buttons below the text; where there are none, commands in it
    settles: bool = False  # answers a press and removes the button's row
    rings: bool = True  # False: replaces its preview silently, however late
    calls: str = ""  # id of the one user whom it mentions; the text mentions nobody
    calls_name: str = ""  # their display name
    links: tuple[str, ...] | None = None  # the only addresses that are links, comparable; None = all (gateway.text)
    sources: tuple[AnswerSource, ...] = ()  # of the answer; listed below it, each a link whatever `links` says

    @property
    def turn(self) -> str:
        """The turn this row belongs to."""
        return self.id.rpartition(".")[0]

    def part(self, number: int, payload: str, plain: str) -> MessagePart:
        """Return a part of this message; *number* is 1 for the first."""
        return MessagePart(
            id=f"{self.id}.{number}",
            key=self.key,
            payload=payload,
            plain=plain,
            reply_to=self.reply_to,
            visible_to=self.visible_to,
            kind=self.kind,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePart:
    """One platform message: cut once, frozen before the first part is sent.

    ``payload`` is the platform's markup (the codec's own format), ``plain`` the same without any. An empty ``payload``
    means that ``plain`` is sent unformatted. A part of kind PREVIEW among the parts of another row is only ever an edit
    of the turn's preview, never a message. A part with a ``file`` is that file: the bytes of its ``blob``, or ``plain``
    in UTF-8 without one. A part that ``is_placed`` (delivery.once: strict) is first sent silently as a placeholder; its
    text follows by *edit*.
    """

    id: str  # "<turn>.<row>.<n>", n from 1; the send key where the platform takes one
    key: SessionKey
    payload: str
    plain: str
    reply_to: str = ""
    visible_to: str = ""
    kind: OutboundKind = OutboundKind.ANSWER
    file: Attachment | None = None
    is_placed: bool = False
    choices: tuple[MessageButton, ...] = ()
    settles: bool = False
    calls: str = ""  # as in OutboundMessage; the channel writes the mention before the text
    calls_name: str = ""
    moved_to: str = ""  # chat of `key`, if it is not the message's: that place is gone

    @property
    def turn(self) -> str:
        """The turn this part belongs to."""
        return self.id.split(".", 1)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReceipt:
    """The platform's confirmation that a part was delivered."""

    part: str
    message_id: str  # the platform's id, needed for edits
    at: datetime = field(compare=False)
    notify_at: datetime | None = field(default=None, compare=False)  # nobody saw it: a job notifies the person then


def turn_id(message: InboundMessage) -> str:
    """``t`` and 16 base32 characters of sha256(channel, account, logical key of the turn's first row)."""
    return "t" + short_id("\0".join((message.key.channel, message.account, message.logical_key)))


def short_id(text: str, length: int = 16) -> str:
    """Return *length* base32 characters of the sha256 of *text*: an id of what is made once, however often tried."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    used = digest[: -(-length // 8) * 5]  # eight characters for five bytes
    return base64.b32encode(used).decode("ascii").lower()[:length]


def short_turn_id(turn: str) -> str:
    """The short form of a turn id that a person is shown and `parlour turn` takes."""
    return turn[:8]
