"""Transcribes voice messages and recordings through a transcription model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from agent.base.file_facts import clean, extension
from agent.llm.chat_model import TokenUsage
from agent.llm.media_model import CallEstimate, MediaModel, UsageAttribution
from gateway.errors import FileUnavailable, ModelFailed, ModelTimeout
from gateway.ports.access import CapReached

log = structlog.get_logger(__name__)

MOST_BYTES = 25_000_000  # what the providers take
SECONDS = 60.0  # for an answer
PURPOSE = "transcription"
_BYTES_PER_TOKEN = 200  # a minute of speech in Opus is a thousand tokens, as good as providers count any
_FAILED = "it could not be listened to"
# The ending is what providers tell the formats apart by.
_ENDINGS = {
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
        if len(data) > MOST_BYTES:
            raise FileUnavailable(f"too long to listen to: more than {MOST_BYTES // 1_000_000} MB")
        last = extension(name)
        file = f"voice.{last if last in _TAKEN else _ENDINGS.get(media_type, 'ogg')}"

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
