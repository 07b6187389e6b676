"""Pictures: the real litellm before a server that behaves badly, and what a call costs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from agent.llm.litellm_model import CallLimit, close_litellm
from agent.llm.media_model import MediaModel, UsageAttribution
from agent.llm.openai_model import picture_price
from agent.tools.draw_tool import MOST_BYTES, PictureModel, build_draw_tool
from gateway.errors import (
    FailureCause,
    InvalidModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
    ModelTimeout,
    ToolFailed,
)
from gateway.events import PlatformAccount
from tests.fakes.llm_context import FakeUsageRecorder, SummingMeter
from tests.fakes.media_server import MediaFault
from tests.fakes.openai_server import FakeOpenAI, open_server

pytestmark = pytest.mark.xdist_group("litellm")
ANN = UsageAttribution("t", PlatformAccount(kind="telegram", id="7"), "telegram:7")


class PictureTrial:
    """A picture model before a server, and what its calls left behind."""

    def __init__(self, server: FakeOpenAI, model: str = "openai/gpt-image-1", *, seconds: float = 30) -> None:
        self.recorder, self.fetched = FakeUsageRecorder(), list[str]()
        media = MediaModel(
            model,
            purpose="picture",
            seconds=seconds,
            most_bytes=MOST_BYTES,
            api_base=server.base,
            api_key="k",
            recorder=self.recorder,
            meter=SummingMeter(),
        )
        self.model = PictureModel(media, size="1024x1024", usd=0.25, fetch=self.fetch)

    async def fetch(self, url: str, most: int) -> bytes:
        """Load the picture of one address alone."""
        self.fetched.append(url)
        assert 5_000_000 < most < MOST_BYTES
        if "public" not in url:
            raise ToolFailed("this address is not on the public internet")
        return b"\xff\xd8\xff" + b"\0" * 20

    async def draw(self) -> tuple[bytes, str]:
        """Draw, and see that the call was closed however it ended."""
        try:
            return await self.model.draw("a red fox", ANN)
        finally:
            assert self.recorder.closed == len(self.recorder.opened)
            await close_litellm()


async def test_a_picture_is_drawn_and_paid_for() -> None:
    """The request has the prompt and the size; what the answer says of tokens is counted."""
    async with open_server() as server:
        server.media.usage = (12, 4_160)
        trial = PictureTrial(server)
        assert await trial.draw() == (server.media.picture, "png")
        (asked,) = server.media.drawn
        assert asked == {"prompt": "a red fox", "model": "gpt-image-1", "n": 1, "size": "1024x1024"}
        (reply,) = trial.recorder.replies
        assert (reply.tokens.input, reply.tokens.output) == (12, 4_160)
        assert reply.cost is not None
        assert 0.1 < reply.cost < 0.2


async def test_older_models_are_asked_for_bytes() -> None:
    """Others than OpenAI's newest answer with an address unless they are asked for the picture itself."""
    async with open_server() as server:
        trial = PictureTrial(server, "openai/dall-e-3")
        await trial.draw()
        assert server.media.drawn[0]["response_format"] == "b64_json"


@pytest.mark.parametrize("is_public", [True, False])
async def test_an_address_is_followed_to_the_public_internet_alone(is_public: bool) -> None:
    """A server may answer with the address of a picture, and with one inside our network."""
    async with open_server() as server:
        server.media.picture_url = f"https://{'public' if is_public else 'inside'}.example/1.jpg"
        trial = PictureTrial(server)
        if is_public:
            assert (await trial.draw())[1] == "jpg"
        else:
            with pytest.raises(InvalidModelReply):
                await trial.draw()
            assert [each.cost for each in trial.recorder.replies] == [0.25]
        assert trial.fetched == [server.media.picture_url]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (MediaFault.ERROR, ModelServerFailed),
        (MediaFault.BUSY, ModelRateLimited),
        (MediaFault.EMPTY, ModelFailed),
        (MediaFault.PAGE, ModelFailed),
        (MediaFault.WRONG_TYPE, ModelFailed),
        (MediaFault.HUGE, InvalidModelReply),
        (MediaFault.PACKED, InvalidModelReply),
        (MediaFault.CUT, ModelServerFailed),
        (MediaFault.POLICY, ModelRefused),
        (MediaFault.UNAUTHORISED, ModelRefused),
    ],
    ids=lambda each: each.name.lower() if isinstance(each, MediaFault) else "",
)
async def test_a_bad_answer_is_a_failure_of_one_request(
    fault: MediaFault, error: type[ModelFailed], caplog: pytest.LogCaptureFixture
) -> None:
    """One request, one closed record, and no word of the provider in error or log. Useless answers cost the same."""
    async with open_server() as server:
        server.media.faults = [fault]
        trial = PictureTrial(server)
        with caplog.at_level(logging.DEBUG), pytest.raises(error) as raised:
            await trial.draw()
        assert len(server.media.drawn) == 1
        assert "SECRET" not in f"{raised.value} {caplog.text}"
        assert [each.cost for each in trial.recorder.replies] == (
            [0.25] if isinstance(raised.value, InvalidModelReply) else []
        )
        assert server.media.sent < 2 * MOST_BYTES
        if fault is MediaFault.POLICY:
            assert raised.value.cause is FailureCause.FILTERED


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "cancelled"])
async def test_a_call_that_ends_without_its_answer_costs_what_was_reserved(*, is_late: bool) -> None:
    """The provider draws on, and charges it: otherwise a picture that is stopped each time passes any cap."""
    async with open_server() as server:
        server.media.faults = [MediaFault.HANG]
        trial = PictureTrial(server, seconds=2 if is_late else 30)
        drawing = asyncio.create_task(trial.draw())
        await server.media.arrived.wait()
        if not is_late:
            drawing.cancel()
        with pytest.raises(ModelTimeout if is_late else asyncio.CancelledError):
            await drawing
        assert [each.cost for each in trial.recorder.replies] == [0.25]


@pytest.mark.parametrize("picture", [b"", b"<svg onload='x'/>", b"GIF89"], ids=["empty", "svg", "cut"])
async def test_what_is_no_picture_is_none(picture: bytes) -> None:
    """Bytes are taken for what they are, whatever the answer calls them."""
    async with open_server() as server:
        server.media.picture = picture
        with pytest.raises(InvalidModelReply):
            await PictureTrial(server).draw()


def test_whether_a_picture_is_ready_may_be_asked_again() -> None:
    """Providers with a queue answer a first request with a number, and GET with the picture: only orders cost."""
    limit = CallLimit(10)
    limit.check_request("POST")
    limit.note_answer(is_redirect=False)
    limit.check_request("GET")
    with pytest.raises(InvalidModelReply):
        limit.check_request("POST")


def test_the_price_of_the_cheapest_is_not_shown_as_none() -> None:
    """Some pictures cost a fraction of a tenth of a cent."""
    for usd, words in ((None, "?"), (0.0, "0"), (0.0003, "0.001"), (0.04, "0.04"), (10.0, "10")):
        model = PictureModel(cast("MediaModel", None), size="", usd=usd, fetch=cast("Any", None))
        assert build_draw_tool(model).costs == words


def test_the_price_is_the_most_that_the_table_says() -> None:
    """Without a quality, the provider may choose its best; an unknown model has no price."""
    low, high = (picture_price("openai/gpt-image-1", "1024x1024", each) for each in ("low", "high"))
    assert low is not None
    assert high is not None
    assert low < high
    assert picture_price("openai/gpt-image-1", "1024x1024", "") == high
    assert picture_price("openai/own-model", "", "") is None
