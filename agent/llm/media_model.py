"""Models for sound and pictures, through litellm: one request for a call, and a usage row however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from agent.llm.chat_model import ChatReply, ChatRequest, Price, TokenUsage
from agent.llm.litellm_model import CallLimit, address_for, key_for, load_litellm, require_litellm
from agent.llm.model_client import UsageRecorder
from agent.llm.provider_errors import map_provider_error
from gateway.errors import InvalidModelReply, ModelFailed, ModelRefused, ModelTimeout
from gateway.events import PlatformAccount
from gateway.ports.metrics import MetricsRecorder

T = TypeVar("T")

TEXT_BYTES = 10_000_000  # of an answer that is text


@dataclass(frozen=True, slots=True)
class UsageAttribution:
    """On whose account a call is made, and for which turn."""

    turn: str
    account: PlatformAccount
    chat: str


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """Expected tokens and cost of a call: reserved before it, and counted where the answer names none."""

    tokens: TokenUsage
    usd: float | None = None  # None = the price is unknown


class MediaModel:
    """One model; nothing is loaded before its first call."""

    def __init__(
        self,
        name: str,
        *,
        purpose: str,
        seconds: float,
        most_bytes: int,
        api_base: str = "",
        api_key: str = "",
        proxy: str = "",
        recorder: UsageRecorder,
        meter: MetricsRecorder,
    ) -> None:
        """Ask the model *name* (as litellm names it) at *api_base*, for at most *seconds*.

        An answer of more than *most_bytes* is not read to its end. *purpose* is that of the usage rows.
        Raises SettingsError if litellm is not installed.
        """
        require_litellm(name)
        self.name = name
        self._purpose = purpose
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._api_base = api_base
        self._api_key = api_key
        self._proxy = proxy
        self._recorder = recorder
        self._meter = meter

    async def load(self) -> Any:
        """Return litellm, imported in a thread."""
        return await asyncio.to_thread(load_litellm, self._proxy)

    async def ask(
        self,
        function: str,
        read: Callable[[Any], Awaitable[T]],
        attribution: UsageAttribution,
        estimate: CallEstimate,
        **arguments: Any,
    ) -> T:
        """Return the result of *read* for the answer of litellm's *function*.

        A call that was sent and then cancelled, or whose answer came late or is no use, may be charged in full: it
        counts as *estimate* says. Raises CapReached before anything is sent; ModelFailed, whose text quotes nothing of
        the provider's: it may hold the key. An answer that *read* raises InvalidModelReply for counts as failed.
        """
        request = ChatRequest(
            messages=(),
            turn=attribution.turn,
            purpose=self._purpose,
            account=attribution.account,
            chat=attribution.chat,
            weight=max(estimate.tokens.input, 1),
            max_tokens=estimate.tokens.output or None,
        )
        price: Price | None = None if estimate.usd is None else lambda _: estimate.usd
        call = await self._recorder.begin_call(request, self.name, price)
        outcome, spent, was_refused = "failed", None, False
        limit, is_sent = CallLimit(self._most_bytes), False
        lost = ChatReply(text="", tool_calls=(), model=self.name, tokens=estimate.tokens, cost=estimate.usd)
        try:
            litellm = await self.load()
            is_sent = True
            async with asyncio.timeout(self._seconds):
                with limit.applied():
                    answer = await getattr(litellm, function)(
                        model=self.name,
                        **address_for(self._api_base),
                        api_key=key_for(self.name, self._api_base, self._api_key),
                        timeout=self._seconds,
                        max_retries=0,
                        **arguments,
                    )
                found = await read(answer)
        except asyncio.CancelledError:
            spent = lost if is_sent else None
            raise
        except InvalidModelReply:
            spent = lost
            raise
        except ModelFailed:
            raise
        except TimeoutError:
            spent = lost
            raise ModelTimeout(f"{self.name}: no answer within {self._seconds:.0f} seconds") from None
        except Exception as error:  # noqa: BLE001 - the provider's boundary: litellm raises whatever its providers do
            if limit.fault:
                spent = lost
                raise InvalidModelReply(f"{self.name}: {limit.fault}") from None
            failed = map_provider_error(error, self.name, datetime.now(UTC))
            was_refused = isinstance(failed, ModelRefused)
            spent = lost if isinstance(failed, InvalidModelReply | ModelTimeout) else None
            raise failed from None
        else:
            outcome, spent = "answered", self._to_chat_reply(answer, estimate)
            return found
        finally:
            self._meter.count("model_calls", purpose=self._purpose, outcome=outcome)
            call.end(spent, was_refused=was_refused)

    def _to_chat_reply(self, answer: Any, estimate: CallEstimate) -> ChatReply:
        usage = getattr(answer, "usage", None)
        tokens = TokenUsage(input=_count(usage, "input_tokens"), output=_count(usage, "output_tokens"))
        cost = (getattr(answer, "_hidden_params", None) or {}).get("response_cost")
        return ChatReply(
            text="",
            tool_calls=(),
            model=self.name,
            tokens=tokens if tokens.input or tokens.output else estimate.tokens,
            # litellm says 0 where its table prices seconds that the answer does not name.
            cost=float(cost) if isinstance(cost, int | float) and cost > 0 else estimate.usd,
        )


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, 0)
    return value if isinstance(value, int) else 0
