"""Speech: transcribes voice messages and recordings, and reads answers out, each through a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.base.file_facts import clean, extension
from agent.llm.chat_model import TokenUsage
from agent.llm.media_model import CallEstimate, MediaModel, UsageAttribution
from gateway.errors import FileUnavailable, InvalidModelReply, ModelFailed, ModelTimeout
from gateway.ports.access import CapReached
from gateway.text import MarkdownNode, NodeKind, parse, write_blocks

log = structlog.get_logger(__name__)

MOST_RECORDED_BYTES = 25_000_000  # what the providers take
TRANSCRIPTION_SECONDS = 60.0  # for an answer
TRANSCRIPTION = "transcription"
_BYTES_PER_TOKEN = 200  # a minute of speech in Opus is a thousand tokens, as good as providers count any
_FAILED = "it could not be listened to"
# The ending is what providers tell the formats apart by.
_FORMATS = {
    "audio/ogg": "ogg",
    "audio/opus": "ogg",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/mp4": "m4a",
    "audio/x-m4a": "m4a",
    "audio/m4a": "m4a",
    "audio/aac": "m4a",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/webm": "webm",
    "audio/flac": "flac",
}
_TAKEN = frozenset({"flac", "mp3", "mp4", "mpeg", "mpga", "m4a", "ogg", "oga", "wav", "webm"})


@dataclass(frozen=True, slots=True)
class SpeechTranscript:
    """A transcript, with its duration if known."""

    text: str
    seconds: float | None = None


class LitellmTranscriber:
    """Listens through litellm's `atranscription`."""

    def __init__(self, model: MediaModel) -> None:
        self._model = model

    async def transcribe(
        self, data: bytes, *, name: str, media_type: str, attribution: UsageAttribution
    ) -> SpeechTranscript:
        """Return the transcript of *data*. Raises FileUnavailable with a phrase for a person."""
        if len(data) > MOST_RECORDED_BYTES:
            raise FileUnavailable(f"too long to listen to: more than {MOST_RECORDED_BYTES // 1_000_000} MB")
        last = extension(name)
        file = f"voice.{last if last in _TAKEN else _FORMATS.get(media_type, 'ogg')}"

        async def read(answer: Any) -> SpeechTranscript:
            text = " ".join(clean(str(getattr(answer, "text", None) or "")).split())
            return SpeechTranscript(text, _seconds(answer, data))

        estimate = CallEstimate(TokenUsage(input=1 + len(data) // _BYTES_PER_TOKEN))
        try:
            transcript = await self._model.ask(
                "atranscription", read, attribution, estimate, file=(file, data, media_type or "audio/ogg")
            )
        except CapReached:  # the answer will be refused with the line that says so
            raise FileUnavailable("not listened to, for what may be spent today is used up") from None
        except ModelTimeout:
            raise FileUnavailable("it took too long to listen to") from None
        except ModelFailed as error:
            log.warning("hearing.failed", turn=attribution.turn, error=type(error).__name__, reason=str(error))
            raise FileUnavailable(_FAILED) from None
        if not transcript.text:
            raise FileUnavailable("nothing is said in it")
        return transcript


def _seconds(reply: Any, data: bytes) -> float | None:
    """Return the duration in seconds: the provider's, else that of an Ogg stream's last page."""
    given = getattr(reply, "duration", None) or getattr(getattr(reply, "usage", None), "seconds", None)
    if isinstance(given, int | float) and given > 0:
        return round(float(given), 1)
    return ogg_seconds(data)


def ogg_seconds(data: bytes) -> float | None:
    """Return the seconds of Opus in Ogg, None for other data. It counts 48,000 a second whatever it was recorded at."""
    last = data.rfind(b"OggS", max(len(data) - 65_536, 0))
    if not data.startswith(b"OggS") or b"OpusHead" not in data[:256] or last < 0 or last + 14 > len(data):
        return None
    position = int.from_bytes(data[last + 6 : last + 14], "little", signed=True)
    return round(position / 48_000, 1) if 0 < position < 48_000 * 86_400 else None


PURPOSE = "speech"
SECONDS = 60.0  # for an answer
MOST_BYTES = 10_000_000  # half an hour of Opus, and a minute of uncompressed sound
VOICE = "voice"  # kind of an attachment that platforms play as a voice message

_CHARACTERS_PER_TOKEN = 4
_CHARACTERS_PER_SECOND = 15  # of speech
_ADDRESS = re.compile(r"(?:https?://|www\.|mailto:)\S+", re.IGNORECASE)
_BLANKS = re.compile(r"[^\S\n]+")
_ENDINGS = ".!?:;,…。！？：；、"
# How each kind of sound begins, its name, its media type, and the kind of attachment. Telegram plays the first three
# as voice messages (core.telegram.org/bots/api#sendvoice).
_SOUNDS = (
    (re.compile(rb"OggS.{24,252}OpusHead", re.DOTALL), "answer.ogg", "audio/ogg", VOICE),
    (re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"), "answer.mp3", "audio/mpeg", VOICE),
    (re.compile(rb".{4}ftyp(?:M4A|mp4|isom)", re.DOTALL), "answer.m4a", "audio/mp4", VOICE),
    (re.compile(rb"RIFF.{4}WAVE", re.DOTALL), "answer.wav", "audio/wav", "audio"),
    (re.compile(rb"fLaC"), "answer.flac", "audio/flac", "audio"),
)


@dataclass(frozen=True, slots=True)
class SpokenSound:
    """A text as sound."""

    data: bytes = field(repr=False)
    name: str
    media_type: str
    kind: str  # of the attachment
    seconds: float | None = None


class SpeechModel:
    """Speaks through litellm's `aspeech`."""

    def __init__(
        self, model: MediaModel, *, voice: str, max_seconds: float, usd_per_million_characters: float | None = None
    ) -> None:
        """Speak with *voice*; None for the price = what litellm's table says."""
        self._model = model
        self._voice = voice
        self._max_seconds = max_seconds
        self._price = usd_per_million_characters

    async def speak(self, text: str, attribution: UsageAttribution) -> SpokenSound:
        """Return *text* as sound.

        Raises CapReached and ModelFailed; InvalidModelReply for other bytes, and for a sound that is too long.
        """
        return await self._model.ask(
            "aspeech",
            self._read,
            attribution,
            CallEstimate(TokenUsage(1 + len(text) // _CHARACTERS_PER_TOKEN), await self._usd(len(text))),
            input=text,
            voice=self._voice,
            response_format="opus",
        )

    async def _read(self, answer: Any) -> SpokenSound:
        data = bytes(getattr(answer, "content", b"") or b"")
        for begins, name, media_type, kind in _SOUNDS:
            if begins.match(data):
                seconds = ogg_seconds(data)
                if seconds is not None and seconds > self._max_seconds:
                    raise InvalidModelReply(f"{self._model.name}: the sound lasts {seconds:.0f} seconds")
                return SpokenSound(data, name, media_type, kind, seconds)
        raise InvalidModelReply(f"{self._model.name}: {len(data)} bytes came that are no sound")

    async def _usd(self, characters: int) -> float | None:
        """Return the estimated cost; None if the price is unknown."""
        if self._price is not None:
            return self._price * characters / 1_000_000
        litellm = await self._model.load()
        try:
            prices = litellm.get_model_info(model=self._model.name)
        except Exception:  # noqa: BLE001 - litellm raises whatever it likes for a model that is not in its table
            return None
        amounts = {
            "input_cost_per_character": characters,
            "input_cost_per_token": characters / _CHARACTERS_PER_TOKEN,
            "output_cost_per_second": characters / _CHARACTERS_PER_SECOND,
        }
        return sum((prices.get(name) or 0) * amount for name, amount in amounts.items()) or None


def spoken_words(markdown: str) -> str:
    """Return the words of an answer that are read out: without markup, code blocks, pictures, formulas and addresses.

    Each heading, row and item ends like a sentence, since a voice makes a pause there.
    """
    text = _blocks(parse(markdown).children)
    lines = (_BLANKS.sub(" ", line).strip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _blocks(nodes: Iterable[MarkdownNode], gap: str = "\n\n") -> str:
    return write_blocks(nodes, _block, _inline, gap)


def _block(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.FENCE | NodeKind.RULE:
            return ""
        case NodeKind.QUOTE:
            return _blocks(node.children)
        case NodeKind.BULLETS | NodeKind.NUMBERS:
            return "\n".join(filter(None, (_sentence(_blocks(item.children, "\n")) for item in node.children)))
        case NodeKind.TABLE:
            rows = (child for child in node.children if child.kind is NodeKind.ROW)
            cells = ([_inline(cell.children).strip() for cell in row.children] for row in rows)
            return "\n".join(filter(None, (_sentence(", ".join(filter(None, row))) for row in cells)))
        case NodeKind.HEADING:
            return _sentence(_inline(node.children))
        case _:
            return _inline(node.children)


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text}." if text and text[-1] not in _ENDINGS else text


def _inline(nodes: tuple[MarkdownNode, ...]) -> str:
    return _ADDRESS.sub("", "".join(map(_span, nodes)))


def _span(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
            return "\n"
        case NodeKind.IMAGE | NodeKind.FORMULA:
            return ""
        case NodeKind.LINK:
            label = _inline(node.children)
            return "" if label == node.href.removeprefix("mailto:") else label
        case _:
            return node.text or _inline(node.children)
