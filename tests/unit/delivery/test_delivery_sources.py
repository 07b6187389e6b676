"""Sources of an answer: data for a channel with footnotes, a line of the text elsewhere; no secret in either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from channels.web import frame_codec
from gateway.delivery.part_planner import PartPlanner
from gateway.events import AnswerSource, MessagePart, OutboundMessage
from gateway.text.redaction import SecretRedactor
from tests.fakes.memory_channel import FILING, FakeChannel
from tests.fakes.turns import ANN
from tests.unit.delivery.conftest import OpensGateway

SECRET = "k3y-of-the-operator-0123456789"
SOURCES = (AnswerSource(f"https://example.org/?key={SECRET}", f"About {SECRET}"), AnswerSource("https://example.org/b"))
ANSWER = OutboundMessage(id="t1.1", key=ANN, text="So they say.", links=(), sources=SOURCES)


class FramesChannel(FakeChannel):
    """A channel whose parts are those of the page."""

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Cut as the page does."""
        return frame_codec.render(message)


@pytest.mark.parametrize("footnotes", [True, False])
async def test_no_secret_is_in_a_source(opens: OpensGateway, *, footnotes: bool) -> None:
    """A page's address may contain a key; each source is shown once, and may be a link."""
    gateway = await opens(FILING)
    context = replace(gateway.deliverer._context, redactor=SecretRedactor([SECRET]))
    channel = FramesChannel(gateway.platform, capabilities=replace(FILING, footnotes=footnotes))
    (part,) = PartPlanner(channel, context).plan_parts(ANSWER, None)
    frame = frame_codec.part_frame(part)
    assert SECRET not in str(frame)
    assert len(frame.get("sources", ())) == (2 if footnotes else 0)
    assert ("https://example.org/b" in frame["text"]) is not footnotes
    assert ("example.org/b" in frame["links"]) is not footnotes
