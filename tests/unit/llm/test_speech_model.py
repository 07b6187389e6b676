"""Answers as sound: the words that are read out, and the real litellm before a server that behaves badly."""

from __future__ import annotations

import logging

import pytest

from agent.attachments.speech import MOST_BYTES, SpeechModel, SpokenSound, spoken_words
from agent.llm.litellm_model import close_litellm
from agent.llm.media_model import MediaModel, UsageAttribution
from gateway.errors import (
    FailureCause,
    InvalidModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
    ModelTimeout,
)
from gateway.events import PlatformAccount
from tests.fakes.llm_context import FakeUsageRecorder, SummingMeter
from tests.fakes.media_server import MediaFault, ogg
from tests.fakes.openai_server import FakeOpenAI, open_server

pytestmark = pytest.mark.xdist_group("litellm")
ANN = UsageAttribution("t", PlatformAccount(kind="telegram", id="7"), "telegram:7")


class SpeechTrial:
    """A speech model before a server, and what its calls left behind."""

    def __init__(self, server: FakeOpenAI, *, seconds: float = 30.0, model: str = "openai/tts-1") -> None:
        self.server = server
        self.recorder, self.meter = FakeUsageRecorder(), SummingMeter()
        media = MediaModel(
            model,
            purpose="speech",
            seconds=seconds,
            most_bytes=MOST_BYTES,
            api_base=server.base,
            api_key="k",
            recorder=self.recorder,
            meter=self.meter,
        )
        self.model = SpeechModel(media, voice="nova", max_seconds=60)

    async def speak(self, text: str = "Come at six.") -> SpokenSound:
        """Speak, and see that the call was closed however it ended."""
        try:
            return await self.model.speak(text, ANN)
        finally:
            assert self.recorder.closed == len(self.recorder.opened)
            await close_litellm()


async def test_a_text_is_spoken_and_paid_for() -> None:
    """The request has the voice and Opus; the cost is that of the characters in litellm's table."""
    async with open_server() as server:
        trial = SpeechTrial(server)
        sound = await trial.speak()
        assert (sound.name, sound.media_type, sound.kind, sound.seconds) == ("answer.ogg", "audio/ogg", "voice", 2.0)
        assert sound.data == ogg(words=b"Come at six.")
        (asked,) = server.media.spoken
        assert asked == {"input": "Come at six.", "model": "tts-1", "voice": "nova", "response_format": "opus"}
        (reply,) = trial.recorder.replies
        assert reply.tokens.input == 4
        assert reply.cost == pytest.approx(10 * 15e-6)  # litellm counts no blanks
        assert trial.meter.counts["model_calls outcome=answered purpose=speech"] == 1


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (b"ID3\x04" + b"\0" * 50, "answer.mp3", "voice"),
        (b"\xff\xfb\x90" + b"\0" * 50, "answer.mp3", "voice"),
        (b"RIFF\0\0\0\0WAVEfmt ", "answer.wav", "audio"),
        (b"fLaC\0\0", "answer.flac", "audio"),
        (b"\0\0\0\x20ftypM4A ", "answer.m4a", "voice"),
    ],
)
async def test_servers_that_send_another_format_are_taken_at_their_bytes(data: bytes, name: str, kind: str) -> None:
    """Many servers do not know Opus; what they send is called what it is."""
    async with open_server() as server:
        server.media.sound = data
        sound = await SpeechTrial(server).speak()
        assert (sound.name, sound.kind) == (name, kind)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (MediaFault.ERROR, ModelServerFailed),
        (MediaFault.BUSY, ModelRateLimited),
        (MediaFault.EMPTY, InvalidModelReply),
        (MediaFault.PAGE, InvalidModelReply),
        (MediaFault.WRONG_TYPE, InvalidModelReply),
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
        trial = SpeechTrial(server)
        with caplog.at_level(logging.DEBUG), pytest.raises(error) as raised:
            await trial.speak()
        assert len(server.media.spoken) == 1
        assert "SECRET" not in f"{raised.value} {caplog.text}"
        assert len(trial.recorder.replies) == (error is InvalidModelReply)
        assert trial.meter.counts["model_calls outcome=failed purpose=speech"] == 1
        assert server.media.sent < 3 * MOST_BYTES  # an endless body is left where it is
        if fault is MediaFault.POLICY:
            assert raised.value.cause is FailureCause.FILTERED


async def test_silence_of_the_server_ends() -> None:
    """Nobody waits longer than the time limit."""
    async with open_server() as server:
        server.media.faults = [MediaFault.HANG]
        with pytest.raises(ModelTimeout):
            await SpeechTrial(server, seconds=0.3).speak()


async def test_a_sound_that_never_ends_is_not_taken() -> None:
    """Some models repeat themselves for minutes."""
    async with open_server() as server:
        server.media.sound = ogg(seconds=61)
        with pytest.raises(InvalidModelReply, match="61 seconds"):
            await SpeechTrial(server).speak()


@pytest.mark.parametrize(
    ("markdown", "spoken"),
    [
        ("**Come** at `six`, _please_.", "Come at six, please."),
        ("# Plan\n\nFirst this.", "Plan.\n\nFirst this."),
        ("- one\n- two!\n  - three", "one.\ntwo!\nthree."),
        ("See [the page](https://a.example/x) and https://b.example/y?z=1 now", "See the page and now"),
        ("[https://a.example](https://a.example)", ""),
        ("Run this:\n\n```sh\nrm -rf /\n```\n\nDone.", "Run this:\n\nDone."),
        ("```\nonly code\n```", ""),
        ("![a cat](https://a.example/cat.png) A cat.", "A cat."),
        ("The area is $\\pi r^2$ here.", "The area is here."),
        ("| who | when |\n|---|---|\n| Ann | six |", "who, when.\nAnn, six."),
        ("> quoted\n\n---\n\nsaid", "quoted\n\nsaid"),
        ("<b>no</b> markup", "<b>no</b> markup"),
        ("", ""),
    ],
)
def test_what_is_read_out_is_what_people_read(markdown: str, spoken: str) -> None:
    """No markup, code, picture, formula or address; headings, rows and items end like sentences."""
    assert spoken_words(markdown) == spoken
