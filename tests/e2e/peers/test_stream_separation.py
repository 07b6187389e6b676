"""Two places that are answered at once, on a platform that answers slowly and out of order: streams stay apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.e2e.peers.platform_scenes import WORLDS, PlatformScene, ReorderedCalls, SteppedModel

_STEPS = 6
_A_WHILE = 0.2  # seconds; a preview may be left out, so that no step can insist on being seen


@pytest.mark.parametrize("kind", WORLDS, ids=[kind.name for kind in WORLDS])
async def test_two_streams_keep_apart(kind: type[PlatformScene]) -> None:
    """Each preview and each final text belongs to its place, whole, as one message, and no other word is ever there.

    The two models take turns word by word, so that whatever is not kept per place would mix.
    """
    turnstile = ReorderedCalls()
    world = kind(turnstile)
    places = {"apples": "left", "pears": "right"}
    together = asyncio.Barrier(2)

    async def tell(question: str) -> AsyncIterator[str]:
        word = "apples" if "apples" in question else "pears"
        text = ""
        for step in range(_STEPS):
            text += f"{word} {step} are worth looking at, and so is what follows. "
            yield text
            with suppress(TimeoutError):
                async with asyncio.timeout(_A_WHILE if step else None):
                    await world.until(lambda n=step: any(f"{word} {n}" in each for each in world.texts(places[word])))  # type: ignore[misc]
            await together.wait()
        yield f"{text}That was all about {word}."

    async with world.open(), world.open_gateway(SteppedModel(tell)) as parlour:
        for word, place in places.items():
            world.say(place, f"tell me about {word}")
        for word, place in places.items():
            end = f"That was all about {word}."
            await world.until(lambda p=place, e=end: any(text.endswith(e) for text in world.texts(p)))  # type: ignore[misc]
        await parlour.idle()
    for word, place in places.items():
        (message,) = world.stand(place)
        assert len(message.texts) > 2, "there was a stream to look at"
        assert all(text.startswith(f"{word} 0") for text in message.texts)
        assert not any(other in text for text in message.texts for other in places if other != word)
        assert message.text.count(word) == _STEPS + 1
    assert turnstile.overtaken > 0
