"""Transcribes voice messages and recordings through a transcription model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import structlog

from agent.base.file_facts import clean, extension
from agent.llm.chat_model import ChatReply, ChatRequest, TokenUsage
from agent.llm.litellm_model import address_for, key_for, load_litellm, require_litellm
from agent.llm.model_client import CallRecord, UsageRecorder
from gateway.errors import FileUnavailable
from gateway.events import PlatformAccount
from gateway.ports.access import CapReached
from gateway.ports.metrics import MetricsRecorder

log = structlog.get_logger(__name__)

MOST_BYTES = 25_000_000  # what the providers take
_DEADLINE = 60.0  # seconds
_PURPOSE = "transcription"
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
class UsageAttribution:
    """On whose account a call is made, and for which turn."""

    turn: str
    account: PlatformAccount
    chat: str


@dataclass(frozen=True, slots=True)
class SpeechTranscript:
    """A transcript, with its duration if known."""

    text: str
    seconds: float | None = None


class LitellmTranscriber:
    """Listens through litellm's `atranscription`: one request, and a usage row however it ends."""

    def __init__(
        self,
        model: str,
        *,
        api_base: str = "",
        api_key: str = "",
        proxy: str = "",
        recorder: UsageRecorder,
        meter: MetricsRecorder,
    ) -> None:
        """Ask *model* (as litellm names it) at *api_base*; nothing is loaded before the first voice comes.

        Raises SettingsError if litellm is not installed.
        """
        require_litellm(model)
        self._model = model
        self._api_base = api_base
        self._api_key = api_key
        self._proxy = proxy
        self._recorder = recorder
        self._meter = meter

    async def transcribe(
        self, data: bytes, *, name: str, media_type: str, attribution: UsageAttribution
    ) -> SpeechTranscript:
        """Return the transcript of *data*. Raises FileUnavailable with a phrase for a person."""
        if len(data) > MOST_BYTES:
            raise FileUnavailable(f"too long to listen to: more than {MOST_BYTES // 1_000_000} MB")
        call = await self._open(len(data), attribution)
        outcome, spent = "failed", None
        try:
            async with asyncio.timeout(_DEADLINE):
                said = await self._ask(data, name, media_type)
            outcome, spent = "answered", self._to_chat_reply(said)
        except TimeoutError:
            raise FileUnavailable("it took too long to listen to") from None
        except Exception as error:  # noqa: BLE001 - the provider's boundary: litellm raises whatever its providers do
            # Not chained, nor quoted: the provider's text may hold the key.
            log.warning("hearing.failed", model=self._model, turn=attribution.turn, error=type(error).__name__)
            raise FileUnavailable(_FAILED) from None
        finally:
            self._meter.count("model_calls", purpose=_PURPOSE, outcome=outcome)
            call.end(spent)
        text = " ".join(clean(str(getattr(said, "text", None) or "")).split())
        if not text:
            raise FileUnavailable("nothing is said in it")
        return SpeechTranscript(text, _seconds(said, data))

    async def _ask(self, data: bytes, name: str, media_type: str) -> Any:
        litellm = await asyncio.to_thread(load_litellm, self._proxy)
        last = extension(name)
        file = f"voice.{last if last in _TAKEN else _ENDINGS.get(media_type, 'ogg')}"
        return await litellm.atranscription(
            model=self._model,
            file=(file, data, media_type or "audio/ogg"),
            **address_for(self._api_base),
            api_key=key_for(self._model, self._api_base, self._api_key),
            timeout=_DEADLINE,
            max_retries=0,
        )

    async def _open(self, size: int, attribution: UsageAttribution) -> CallRecord:
        request = ChatRequest(
            messages=(),
            turn=attribution.turn,
            purpose=_PURPOSE,
            account=attribution.account,
            chat=attribution.chat,
            weight=1 + size // _BYTES_PER_TOKEN,
        )
        try:
            return await self._recorder.begin_call(request, self._model)
        except CapReached:  # the answer will be refused with the line that says so
            raise FileUnavailable("not listened to, for what may be spent today is used up") from None

    def _to_chat_reply(self, reply: Any) -> ChatReply:
        usage = getattr(reply, "usage", None)
        tokens = TokenUsage(input=_count(usage, "input_tokens"), output=_count(usage, "output_tokens"))
        cost = (getattr(reply, "_hidden_params", None) or {}).get("response_cost")
        return ChatReply(
            text="",
            tool_calls=(),
            model=self._model,
            tokens=tokens,
            # litellm says 0 where its table prices seconds that the answer does not name.
            cost=float(cost) if isinstance(cost, int | float) and cost > 0 else None,
        )


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, 0)
    return value if isinstance(value, int) else 0


def _seconds(reply: Any, data: bytes) -> float | None:
    """Return the duration in seconds: the provider's, else that of an Ogg stream's last page."""
    given = getattr(reply, "duration", None) or getattr(getattr(reply, "usage", None), "seconds", None)
    if isinstance(given, int | float) and given > 0:
        return round(float(given), 1)
    return _ogg_seconds(data)


def _ogg_seconds(data: bytes) -> float | None:
    """Read the length of Opus in Ogg, which counts 48,000 a second whatever it was recorded at."""
    last = data.rfind(b"OggS", max(len(data) - 65_536, 0))
    if not data.startswith(b"OggS") or b"OpusHead" not in data[:256] or last < 0 or last + 14 > len(data):
        return None
    position = int.from_bytes(data[last + 6 : last + 14], "little", signed=True)
    return round(position / 48_000, 1) if 0 < position < 48_000 * 86_400 else None
