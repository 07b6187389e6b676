"""Frames between a window (the page, a terminal) and its channel, pure both ways.

A frame is a JSON object with a ``type``. From a window: ``say``, ``press``, ``look``, ``ping``. To a window:
``history``, ``earlier``, ``accepted``, ``said``, ``rejected``, ``later``, ``trouble``, ``preview``, ``message``,
``activity``, ``pong``. Reading refuses what is wrong with a `BadFrame`; it never guesses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeAlias

from gateway.errors import ParlourError
from gateway.events import (
    AnswerSource,
    Attachment,
    InboundKind,
    InboundMessage,
    MessageButton,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.i18n import FALLBACK, translate
from gateway.ports.channel import CallStep, ChatActivity, DisplayedMessage, IntakeResult
from gateway.text import button_rows, find_command, render_plain, sanitize, split_bounded
from gateway.text.message_text import is_source

Frame: TypeAlias = Mapping[str, Any]
Address: TypeAlias = Callable[[Attachment], Frame]  # where a window finds a file, in its own words

LONGEST_FRAME = 1_000_000  # bytes of JSON
LONGEST_SAYING = 100_000  # characters of one message
TEXT_LIMIT = 60_000  # characters of one part
MOST_PARTS = 40
MOST_FILES = 10  # with one message
LARGEST_FILE = 50_000_000  # bytes
# What a window may draw; the type is claimed, and a browser draws other bytes not at all. SVG is a document.
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
LARGEST_PICTURE = 10_000_000  # bytes
SOUNDS = frozenset({"audio/ogg", "audio/mpeg", "audio/mp4", "audio/wav", "audio/flac", "audio/webm"})
LARGEST_SOUND = 25_000_000  # bytes

_ID = re.compile(r"[A-Za-z0-9_-]{8,64}\Z")
_LONGEST_POSITION = 128
_LONGEST_REPLACED = 128  # characters of a message id
_COMMAND = re.compile(r"/[a-z][ -~]{0,62}\Z")
_LONGEST_COMMAND = 4_000  # characters from a window's own control: a remembered line and what replaces it


class BadFrame(ParlourError):
    """A window sent an invalid frame; the catalogue key *sentence*, with its *fields*, is the error for its user."""

    def __init__(self, sentence: str, **fields: object) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.fields = fields


@dataclass(frozen=True, slots=True)
class SayFrame:
    """A message. `id` is chosen by the window and repeated when it sends again."""

    id: str
    text: str
    files: tuple[str, ...] = ()  # what the window calls the files it handed over before
    replaces: str = ""  # the id of an earlier message that this one is another version of


@dataclass(frozen=True, slots=True)
class PressFrame:
    """A button press. `id` is repeated when the window sends again."""

    id: str
    part: str  # the message part that has the button; "" for a button of the window's own
    command: str


@dataclass(frozen=True, slots=True)
class HistoryFrame:
    """A window asks for the newest page of the history, or for the page before one that it has."""

    before: str = ""  # what the page that it has said of where it begins


@dataclass(frozen=True, slots=True)
class PingFrame:
    """A window checks the connection."""


def parse_frame(raw: object) -> SayFrame | PressFrame | HistoryFrame | PingFrame:
    """Read one frame, from JSON text or already an object; raise BadFrame."""
    frame = _load(raw) if isinstance(raw, (str, bytes)) else raw
    if not isinstance(frame, Mapping):
        raise BadFrame("frames.bad")
    match frame.get("type"):
        case "say":
            return _read_say(frame)
        case "press":
            return _read_press(frame)
        case "look":
            return _read_look(frame)
        case "ping":
            return PingFrame()
        case _:
            raise BadFrame("frames.bad")


def _load(raw: str | bytes) -> object:
    if len(raw) > LONGEST_FRAME:
        raise BadFrame("frames.long", limit=LONGEST_SAYING)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise BadFrame("frames.bad") from None


def _read_say(frame: Mapping[Any, Any]) -> SayFrame:
    ident, text = frame.get("id"), frame.get("text")
    files = frame.get("files", [])
    if not isinstance(ident, str) or not _ID.match(ident) or not isinstance(text, str):
        raise BadFrame("frames.bad")
    if not isinstance(files, list) or len(files) > MOST_FILES or not all(isinstance(each, str) for each in files):
        raise BadFrame("frames.bad")
    text = sanitize(text).strip()
    replaces = frame.get("replaces", "")
    if not isinstance(replaces, str) or len(replaces) > _LONGEST_REPLACED:
        raise BadFrame("frames.bad")
    if not text and not files and not replaces:  # another version keeps the files of the message that it replaces
        raise BadFrame("frames.empty")
    if len(text) > LONGEST_SAYING:
        raise BadFrame("frames.long", limit=LONGEST_SAYING)
    return SayFrame(ident, text, tuple(files), replaces)


def _read_look(frame: Mapping[Any, Any]) -> HistoryFrame:
    before = frame.get("before", "")
    if not isinstance(before, str) or len(before) > _LONGEST_POSITION:
        raise BadFrame("frames.bad")
    return HistoryFrame(before)


def _read_press(frame: Mapping[Any, Any]) -> PressFrame:
    ident, part, command = frame.get("id"), frame.get("part"), frame.get("command")
    if not isinstance(ident, str) or not _ID.match(ident) or not isinstance(part, str) or len(part) > 64:
        raise BadFrame("frames.bad")
    if not isinstance(command, str) or len(command) > _LONGEST_COMMAND:
        raise BadFrame("frames.bad")
    command = command if part else sanitize(command).strip()
    if not (_COMMAND.match(command) if part else find_command(command)):
        raise BadFrame("frames.bad")
    return PressFrame(ident, part, command)


def button_message(press: PressFrame, *, key: SessionKey, sender: Sender, at: datetime) -> InboundMessage:
    """Return the inbound message of a button press; the same id gives the same event."""
    return InboundMessage(
        key=key,
        message_id="",
        event_ids=(f"press/{press.id}",),
        sender=sender,
        text=press.command,
        command=press.command,
        sent_at=at,
        kind=InboundKind.BUTTON,
        is_addressed=True,
        reply_to=press.part,
    )


def inbound(
    saying: SayFrame, *, key: SessionKey, sender: Sender, at: datetime, attachments: tuple[Attachment, ...] = ()
) -> InboundMessage:
    """Return the inbound message of a frame; the same id gives the same message id. A command replaces nothing."""
    command = find_command(saying.text)
    return InboundMessage(
        key=key,
        message_id=saying.id,
        sender=sender,
        text=saying.text,
        command=command,
        replaces="" if command else saying.replaces,
        sent_at=at,
        is_addressed=True,
        attachments=attachments,
    )


def render(message: OutboundMessage, language: str = FALLBACK) -> tuple[MessagePart, ...]:
    """Cut *message* into parts, and say in *language* where it is cut.

    A part's payload is JSON: its Markdown, and whether it is the last text.
    """
    pieces = split_bounded(
        message.text, limit=TEXT_LIMIT, max_parts=MOST_PARTS, note=translate("delivery.cut", language)
    )
    return tuple(
        message.part(
            n,
            json.dumps(_text_fields(piece, message, is_last=n == len(pieces)), ensure_ascii=False),
            # A window reads Markdown itself; what grows is not worth reading twenty times a second.
            piece if message.kind is OutboundKind.PREVIEW else render_plain(piece, message.links),
        )
        for n, piece in enumerate(pieces, start=1)
    )


def _text_fields(text: str, message: OutboundMessage, *, is_last: bool) -> Frame:
    files = len(message.attachments)
    fields: dict[str, Any] = {"text": text, "last": is_last and not files}
    if is_last:
        fields |= _source_fields(message.sources)
    if is_last and not message.rings:
        fields["partial"] = True  # only an answer that ended early does not ring
    if is_last and files:
        fields["follow"] = files  # so many more parts are to come
    return fields | _link_fields(message.links)


def _link_fields(links: Sequence[str] | None) -> dict[str, Any]:
    """Return the field that says which addresses alone are links; none if all are."""
    return {} if links is None else {"links": list(links)}


def _source_fields(sources: Sequence[AnswerSource]) -> dict[str, Any]:
    """Return the field with the pages and files that an answer was made from, if it has any."""
    kept = [each for each in sources if is_source(each.url)]  # an erased word may have been in an address
    return {"sources": [{"url": each.url, "title": sanitize(each.title)} for each in kept]} if kept else {}


def part_frame(part: MessagePart, *, may_be_duplicate: bool = False, replaces: str = "") -> Frame:
    """Return the frame that shows *part*, without the address of a file; a preview is the turn's text so far.

    A part without a payload is plain text (`is_plain`) and cannot tell if it is the last: the last text has the
    number of parts that `follow` it.
    """
    payload: Frame = json.loads(part.payload) if part.payload else {"text": part.plain, "last": False}
    text = part.file.caption if part.file is not None else str(payload["text"])
    links = _link_fields(payload.get("links"))
    if part.kind is OutboundKind.PREVIEW:
        return {"type": "preview", "turn": part.turn, "text": text, **links}
    return {
        "type": "message",
        "part": part.id,
        "turn": part.turn,
        "text": sanitize(text),
        "is_plain": not part.payload,
        "last": payload["last"],
        "follow": payload.get("follow", 0),
        "kind": part.kind.value,
        "answers": part.reply_to,  # id of the message; "" for what came by itself, such as a reminder
        "marked": may_be_duplicate,
        "replaces": replaces,
        "file": None,
        "buttons": _button_frames(part.choices),
        "settles": part.settles,
        **({"sources": payload["sources"]} if "sources" in payload else {}),
        **({"partial": True} if payload.get("partial") else {}),
        **links,
    }


@dataclass(frozen=True, slots=True)
class ForeignFrame:
    """A frame from another worker; where it has a file, its own windows have other addresses for it."""

    frame: Frame
    visible_to: str = ""
    file: Attachment | None = None
    text: str = ""


def encode_shared(frame: Frame, part: MessagePart | None = None) -> str:
    """Return *frame* as text for other workers, with the file of its *part*."""
    fields: dict[str, Any] = {"frame": frame}
    if part is not None and part.visible_to:
        fields["visible_to"] = part.visible_to
    if part is not None and part.file is not None:
        fields |= {"file": asdict(part.file), "text": "" if part.file.blob else part.plain}
    return json.dumps(fields, separators=(",", ":"))


def decode_shared(text: str) -> ForeignFrame:
    """Read the text of `encode_shared`."""
    fields = json.loads(text)
    file = fields.pop("file", None)
    return ForeignFrame(**fields, file=None if file is None else Attachment(**file))


def shown_file(file: Attachment) -> Frame:
    """Return the fields of a file that every window shows."""
    fields: dict[str, Any] = {"name": sanitize(file.name) or "file", "size": file.size}
    if file.media_type in PICTURES and file.size <= LARGEST_PICTURE:
        fields["is_picture"] = True
        if file.caption:
            fields["alt"] = sanitize(file.caption)
    elif file.media_type in SOUNDS and file.size <= LARGEST_SOUND:
        fields["is_sound"] = True
    return fields


def history(
    lines: Sequence[DisplayedMessage],
    address: Address,
    language: str = FALLBACK,
    *,
    before: str = "",
    is_earlier: bool = False,
) -> Frame:
    """Return a page of the history: the newest when a window (re)connects, or one before those it has.

    *before* is the position to ask for next, "" if nothing is older; *address* returns the fields of a file.
    *language* is for a terminal's labels; the page has its own.
    """
    kind = "earlier" if is_earlier else "history"
    shown = [_line(line, address) for line in lines if not line.is_press]
    return {"type": kind, "language": language, "before": before, "lines": shown}


def _line(line: DisplayedMessage, address: Address) -> Frame:
    return {
        "files": [address(each) for each in line.attachments],
        "id": line.id,
        "turn": line.turn,
        "role": line.role,
        "text": line.text,
        "at": line.at.isoformat(),
        "name": line.name,
        "message": line.message_id,
        "state": line.state,
        **({"replaces": line.replaces} if line.replaces else {}),
        **({"partial": True} if line.is_partial else {}),
        **({"steps": line.steps} if line.steps else {}),
        **({"reasoning": True} if line.has_reasoning else {}),
        **({"part": line.part, "buttons": _button_frames(line.choices)} if line.choices else {}),
        **_source_fields(line.sources),
        **_link_fields(line.links),
    }


def _button_frames(choices: Sequence[MessageButton]) -> list[list[Frame]]:
    """Return the rows of buttons below a message."""
    return [[{"label": each.label, "command": each.command} for each in row] for row in button_rows(choices)]


def accepted(saying: SayFrame | PressFrame, turn: str) -> Frame:
    """Return "it is durable"; *turn* is the answer's, unless the message is merged into another's."""
    return {"type": "accepted", "id": saying.id, "turn": turn}


def echo_frame(message: InboundMessage) -> Frame:
    """Return the frame that shows a message to the chat's other windows."""
    return {
        "type": "said",
        "id": message.message_id,
        "text": message.text,
        "at": message.sent_at.isoformat(),
        "files": [shown_file(each) for each in message.attachments],
        **({"replaces": message.replaces} if message.replaces else {}),
    }


def rejected(saying: SayFrame | PressFrame, answer: IntakeResult, language: str = FALLBACK) -> Frame:
    """Return "it was not taken, and will not be"."""
    return {
        "type": "rejected",
        "id": saying.id,
        "line": answer.line or translate(f"frames.{answer.verdict.value}", language),
    }


def retry_frame(saying: SayFrame | PressFrame, language: str = FALLBACK) -> Frame:
    """Return "it could not be stored now": the window keeps it and sends it again."""
    return {"type": "later", "id": saying.id, "line": translate("frames.later", language)}


def error_frame(error: BadFrame, language: str = FALLBACK) -> Frame:
    """Return the error frame for an invalid frame."""
    return trouble_line(translate(error.sentence, language, **error.fields))


def trouble_line(line: str) -> Frame:
    """Return a line about this window alone."""
    return {"type": "trouble", "line": line}


def activity(what: ChatActivity) -> Frame:
    """Return typing or a status, begun or over, with the turn's tool calls so far."""
    frame: dict[str, Any] = {"type": "activity", "on": what.on, "text": sanitize(what.text)}
    if what.steps:
        frame |= {"turn": what.turn, "steps": [step_frame(each) for each in what.steps]}
    return frame


def step_frame(step: CallStep) -> Frame:
    """Return a tool call as a window shows it."""
    return {**asdict(step), "words": sanitize(step.words), "error": sanitize(step.error)}


def pong() -> Frame:
    """Return the answer to a ping."""
    return {"type": "pong"}


_LONGEST_NAME = 100
# Controls would end a header or move a cursor; direction marks show "exe.png" for what is "gnp.exe".
_NOT_IN_NAMES = re.compile('[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff<>:"/\\\\|?*]+')


def safe_file_name(name: str) -> str:
    """Return *name* as one file is called in any folder: no path, no hidden file, nothing a terminal would obey."""
    plain = " ".join(_NOT_IN_NAMES.sub(" ", name).split()).strip(". ")
    stem, dot, ending = plain.rpartition(".")
    if dot and len(ending) <= 16 and len(plain) > _LONGEST_NAME:
        return f"{stem[: _LONGEST_NAME - len(ending) - 1].rstrip('. ')}.{ending}"
    return plain[:_LONGEST_NAME].rstrip(". ") or "file"
