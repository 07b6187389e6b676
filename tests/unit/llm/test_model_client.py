"""Retries, fallbacks and the accounting of every call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, attach_usage
from agent.llm.model_client import LONGEST_WAIT, ModelClient
from agent.llm.scripted_model import ScriptedModel, ScriptEntry
from gateway.errors import (
    ContextOverflow,
    InvalidModelReply,
    ModelRateLimited,
    ModelTimeout,
    ModelUnreachable,
)
from tests.fakes.clock import VirtualClock
from tests.fakes.llm_context import FakeUsageRecorder, SummingMeter, request

FINE = ScriptEntry(text="fine", tokens=TokenUsage(100, 10, 80))


def failing(error: str, delay: float = 0.0) -> ScriptEntry:
    """A script entry that fails."""
    return ScriptEntry(error=error, delay=delay)


class ClientScene:
    """A client over scripted models, with everything it reports."""

    def __init__(self, *scripts: list[ScriptEntry], now: Callable[[], datetime], attempts: int = 2) -> None:
        self.models = [ScriptedModel(script, name=f"m{n}") for n, script in enumerate(scripts)]
        self.usages = FakeUsageRecorder()
        self.meter = SummingMeter()
        self.client = ModelClient(
            self.models, attempts=attempts, recorder=self.usages, meter=self.meter, now=now, jitter=lambda: 0.5
        )

    @property
    def asked(self) -> list[int]:
        """How often each model was asked."""
        return [len(model.requests) for model in self.models]


@pytest.mark.parametrize("error", ["busy", "unreachable", "timeout", "garbled", "empty"])
async def test_a_passing_fault_is_tried_again_after_a_pause(error: str, clock: VirtualClock) -> None:
    """One failure of a kind that passes costs one more request and a short wait, and nobody notices."""
    scene = ClientScene([failing(error), FINE], now=clock.now)
    assert (await scene.client.complete(request("hi"))).text == "fine"
    assert scene.asked == [2]
    assert clock.seconds == pytest.approx(1.0)


async def test_pauses_grow(clock: VirtualClock) -> None:
    """Each further attempt waits twice as long as the one before."""
    scene = ClientScene([failing("unreachable")] * 3 + [FINE], now=clock.now, attempts=4)
    await scene.client.complete(request("hi"))
    assert clock.seconds == pytest.approx(1 + 2 + 4)


async def test_eight_times_500_ends_with_the_first_error(clock: VirtualClock) -> None:
    """A model that stays down is asked as often as allowed, then the error is raised."""
    scene = ClientScene([failing("unreachable")] * 8, now=clock.now)
    with pytest.raises(ModelUnreachable):
        await scene.client.complete(request("hi"))
    assert scene.asked == [2]


async def test_retry_after_is_waited_for(clock: VirtualClock) -> None:
    """The provider's wait is kept to, and exceeded only slightly."""
    scene = ClientScene([failing("busy", 7), FINE], now=clock.now)
    await scene.client.complete(request("hi"))
    assert 7 <= clock.seconds < 7.5


@pytest.mark.parametrize("fault", [failing("busy", LONGEST_WAIT.total_seconds() + 1), failing("refused")])
async def test_what_cannot_be_waited_for_goes_to_the_next_model_at_once(
    fault: ScriptEntry, clock: VirtualClock
) -> None:
    """A provider that asks for more than the bound, and one that refuses for good, is not asked again."""
    scene = ClientScene([fault, FINE], [FINE], now=clock.now)
    assert (await scene.client.complete(request("hi"))).model == "m1"
    assert scene.asked == [1, 1]
    assert clock.seconds == 0


async def test_an_overflow_is_raised_at_once(clock: VirtualClock) -> None:
    """A prompt that does not fit is the caller's to shorten: no retry, no fallback."""
    scene = ClientScene([failing("overflow")], [FINE], now=clock.now)
    with pytest.raises(ContextOverflow):
        await scene.client.complete(request("hi"))
    assert scene.asked == [1, 0]


async def test_fallbacks_are_asked_in_order_and_the_first_error_counts(clock: VirtualClock) -> None:
    """When all fail, the error is the first model's: a misconfigured fallback does not hide it."""
    scene = ClientScene([failing("timeout")], [failing("refused")], [failing("garbled")], now=clock.now)
    with pytest.raises(ModelTimeout):
        await scene.client.complete(request("hi"))
    assert scene.asked == [2, 1, 2]


async def test_one_usage_note_per_call_that_took_tokens(clock: VirtualClock) -> None:
    """A failed call that took tokens is noted as well as the one that answered; one that took none is not."""
    spent = ChatReply(text="", tool_calls=(), model="m0", tokens=TokenUsage(50, 5, 0), cost=0.1)

    class GarblingModel(ScriptedModel):
        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            self.requests.append(request)
            if len(self.requests) == 1:
                raise attach_usage(InvalidModelReply("cut"), spent)
            if len(self.requests) == 2:
                raise ModelRateLimited("wait", timedelta(seconds=1))
            return ChatReply(text="ok", tool_calls=(), model="m0", tokens=TokenUsage(60, 6, 40), cost=0.2)

    usages, meter = FakeUsageRecorder(), SummingMeter()
    client = ModelClient([GarblingModel([FINE], name="m0")], attempts=3, recorder=usages, meter=meter, now=clock.now)
    asked = request("hi", purpose="consolidation")
    await client.complete(asked)
    assert [used.tokens.input for used in usages.replies] == [50, 60]
    assert all(noted is asked for noted in usages.requests)
    assert meter.counts["model_tokens direction=in"] == 110
    assert meter.counts["model_tokens direction=cached"] == 40
    assert meter.counts["model_cache_hits"] == 1
    outcomes = {name: n for name, n in meter.counts.items() if name.startswith("model_calls")}
    assert outcomes == {
        "model_calls outcome=InvalidModelReply purpose=consolidation": 1,
        "model_calls outcome=ModelRateLimited purpose=consolidation": 1,
        "model_calls outcome=answered purpose=consolidation": 1,
    }


async def test_a_cancelled_call_is_noted_with_an_estimate(clock: VirtualClock) -> None:
    """/stop does not make a call free: what was sent counts, though nobody says how much it was."""
    scene = ClientScene([ScriptEntry(text="late", delay=60)], now=clock.now)
    asking = asyncio.create_task(scene.client.complete(request("a long question " * 100)))
    await asyncio.sleep(1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    (noted,) = scene.usages.replies
    assert noted.tokens.is_estimate
    assert noted.tokens.input > 300
    assert scene.meter.counts["model_calls outcome=cancelled purpose=answer"] == 1


async def test_latency_is_measured_without_the_pauses(clock: VirtualClock) -> None:
    """Model latency is one call's, the wait between two attempts is not in it; first words are measured on streams."""
    scene = ClientScene([failing("unreachable"), ScriptEntry(text="x", delay=3)], now=clock.now)
    await scene.client.complete(request("hi"), sink=lambda _text: None)
    assert scene.meter.times["model_seconds purpose=answer"] == pytest.approx([0, 3])
    assert scene.meter.times["model_first_token_seconds purpose=answer"] == pytest.approx([3])


async def test_a_retry_streams_from_the_beginning(clock: VirtualClock) -> None:
    """A sink that saw a failed attempt ends with the whole text of the good one."""
    seen: list[str] = []

    class BreakingModel(ScriptedModel):
        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            assert sink is not None
            self.requests.append(request)
            if len(self.requests) == 1:
                sink("Once upon a time there")
                raise ModelUnreachable("cut")
            sink("It")
            sink("It was")
            return ChatReply(text="It was", tool_calls=(), model="m0", tokens=TokenUsage(), cost=None)

    client = ModelClient([BreakingModel([FINE])], recorder=FakeUsageRecorder(), meter=SummingMeter(), now=clock.now)
    reply = await client.complete(request("hi"), sink=seen.append)
    assert seen[-1] == reply.text == "It was"


def test_a_client_needs_a_model() -> None:
    """An empty list of models is a mistake of the gateway, found when it is built."""
    with pytest.raises(ValueError, match="at least one"):
        ModelClient([], recorder=FakeUsageRecorder(), meter=SummingMeter())
