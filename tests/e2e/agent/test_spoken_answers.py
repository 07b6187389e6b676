"""Voice answers to voice messages, through the whole gateway: beside the text, once, within caps, erased with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import AdmissionPolicy, AllowEntry
from gateway.ports.journal import UsageRow
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.conditions import eventually
from tests.fakes.file_gateway import KEY, SCOPE, FileGateway, open_gateway
from tests.fakes.media_server import MediaFault, ogg
from tests.fakes.openai_server import ScriptedAnswer
from tests.fakes.staged_changes import erase

pytestmark = pytest.mark.xdist_group("litellm")
VOICE: dict[str, Any] = {
    "PARLOUR_LLM__TRANSCRIPTION_MODEL": "openai/whisper-1",
    "PARLOUR_SPEECH__MODEL": "openai/tts-1",
}


async def says(at: FileGateway, **facts: Any) -> str:
    """Send a voice message and return the text that answers it."""
    number = facts.pop("number", f"voice {len(at.sources.files)}")
    sound = at.sources.put("v.ogg", b"OggS" + b"\0" * 50, kind="voice")
    return await at.channel.ask("c", "", attachments=[sound], number=number, **facts)


async def no_jobs(at: FileGateway) -> None:
    """Return when no sound is to come."""
    app = at.parlour.app
    while app.background.running or await app.store.jobs.pending_of("speech"):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    await at.parlour.idle()


async def usage(at: FileGateway, purpose: str) -> Sequence[UsageRow]:
    """Return the usage rows of the first turn for *purpose*."""
    lines = await at.parlour.app.memory.sessions.displayed_messages(KEY, limit=10)
    story = await at.parlour.app.store.journal.trace(lines[0].turn)
    assert story is not None
    return [row for row in story.usage if row.purpose == purpose]


async def test_a_voice_message_is_answered_in_text_and_aloud() -> None:
    """The text first; then its sound, as a message of its own that answers the same message and is in the history."""
    script = [ScriptedAnswer(text="**Six** it is. See https://a.example/x")]
    async with open_gateway(script, **VOICE) as at:
        assert await says(at, number="n1") == "**Six** it is. See https://a.example/x"
        await no_jobs(at)
        _, sound = at.channel.posts["c"]
        assert (sound.text, sound.reply_to) == ("", "n1")
        (file,) = at.channel.arrived
        assert (file.name, file.data, file.media_type) == ("answer.ogg", ogg(words=b"Six it is. See"), "audio/ogg")
        assert [each["voice"] for each in at.server.media.spoken] == ["alloy"]
        (row,) = await usage(at, "speech")
        assert (row.model, row.person, row.chat) == ("openai/tts-1", "pocket%3aann", "pocket:c")
        assert row.cost == pytest.approx(11 * 15e-6)  # without blanks
        (line,) = [each for each in at.lines() if each.get("kind") == "notice"]
        (fact,) = line["files"]
        assert (fact["kind"], fact["said"], fact["seconds"]) == ("voice", "Six it is. See", 2.0)
        shown = await at.parlour.app.memory.sessions.displayed_messages(KEY, limit=5)
        assert shown[-1].text == "(voice 0:02: Six it is. See)"
        assert [each.blob for each in shown[-1].attachments] == [fact["blob"]]


@pytest.mark.parametrize("environment", [{}, {"PARLOUR_SPEECH__WHO": "owner"}], ids=["off", "for owners"])
async def test_it_is_read_out_to_those_it_is_for(environment: dict[str, str]) -> None:
    """Off unless a model is set; of the roles only those that the setting names."""
    settings = {**VOICE, **environment} if environment else {**VOICE, "PARLOUR_SPEECH__MODEL": ""}
    policy = AdmissionPolicy(channel="pocket", entries=frozenset({AllowEntry.parse("ann")}))
    async with open_gateway(policy=policy, **settings) as at:
        await says(at)
        await no_jobs(at)
        assert at.server.media.spoken == []
        assert len(at.channel.posts["c"]) == 1


async def test_it_is_read_out_to_an_owner() -> None:
    """Where only owners hear answers: the same message of an owner has its sound."""
    owner = AdmissionPolicy(channel="pocket", entries=frozenset(), owners=frozenset({"ann"}))
    async with open_gateway(policy=owner, **VOICE, PARLOUR_SPEECH__WHO="owner") as at:
        await says(at)
        await no_jobs(at)
        assert len(at.server.media.spoken) == 1
        assert len(at.channel.posts["c"]) == 2


async def test_texts_code_and_long_answers_are_text_alone() -> None:
    """A written message is answered in writing; a long answer says once, below it, that it is not read out."""
    long = "word " * 20
    script: list[ScriptedAnswer | str] = ["written", "```\ncode\n```", ScriptedAnswer(text=long), "short"]
    async with open_gateway(script, **VOICE, PARLOUR_SPEECH__MAX_CHARACTERS="50") as at:
        assert await at.channel.ask("c", "hello") == "written"
        assert await says(at) == "```\ncode\n```"
        answer = await says(at)
        assert answer == f"{long}\n\nThis answer is too long to be read out: the limit is 50 characters."
        assert await says(at) == "short"
        await no_jobs(at)
        assert [each["input"] for each in at.server.media.spoken] == ["short"]


@pytest.mark.parametrize(
    "fault", [each for each in MediaFault if each is not MediaFault.HANG], ids=lambda each: each.name
)
async def test_a_sound_that_fails_leaves_the_text(fault: MediaFault) -> None:
    """The text is there; nothing else comes, and the next voice message is answered as ever."""
    async with open_gateway(["one", "two"], **VOICE) as at:
        at.server.media.faults = [fault] * 9
        assert await says(at) == "one"
        await eventually(lambda: bool(at.server.media.spoken))
        at.server.media.faults = []
        assert await says(at) == "two"
        await eventually(lambda: len(at.channel.arrived) >= 1)
        assert "two" in [each["input"] for each in at.server.media.spoken]
        assert [post.text for post in at.channel.posts["c"] if post.text] == ["one", "two"]


async def test_the_next_answer_does_not_wait_for_a_sound() -> None:
    """Texts go on while a sound is made."""
    async with open_gateway(["one", "two"], **VOICE) as at:
        at.server.media.gate = asyncio.Event()
        assert await says(at) == "one"
        await at.server.media.arrived.wait()
        assert await at.channel.ask("c", "and then?") == "two"
        assert at.channel.arrived == []
        at.server.media.gate.set()
        await no_jobs(at)
        assert [file.data for file in at.channel.arrived] == [ogg(words=b"one")]


async def test_words_that_are_forgotten_meanwhile_are_not_said() -> None:
    """An erasure while the sound is made: nothing is sent, and no bytes are kept."""
    async with open_gateway(["The code is swordfish."], **VOICE) as at:
        at.server.media.gate = asyncio.Event()
        await says(at)
        await at.server.media.arrived.wait()
        kept = at.kept()
        await erase(at.channel.ask, "c", "/forget swordfish")
        await at.parlour.idle()
        at.server.media.gate.set()
        await no_jobs(at)
        assert at.channel.arrived == []
        assert at.kept() <= kept


async def test_an_equal_sound_of_another_answer_stays() -> None:
    """Files are named by their bytes: the one that an erased answer would have had may be another message's."""
    async with open_gateway(["Six.", "Six."], **VOICE) as at:
        await says(at)
        await no_jobs(at)
        (fact,) = next(each["files"] for each in at.lines() if each.get("kind") == "notice")
        at.server.media.gate = asyncio.Event()
        at.server.media.arrived.clear()
        await says(at)
        await at.server.media.arrived.wait()
        (job,) = await at.parlour.app.store.jobs.pending_of("speech")
        await at.parlour.app.store.jobs.finish(job)
        at.server.media.gate.set()
        await no_jobs(at)
        assert len(at.channel.arrived) == 1
        assert fact["blob"].rpartition("/")[2] in at.kept()


async def test_a_secret_is_not_said_either() -> None:
    """Markup inside of it hides it in the answer's source, and is gone in what is spoken."""
    secret = "Zx81-Quartz-Nebula-77Kq"
    script = [ScriptedAnswer(text=f"It is {secret[:14]}**{secret[14:]}**.")]
    async with open_gateway(script, **VOICE, PARLOUR_TOOLS__DRAW__API_KEY=secret) as at:
        await says(at)
        await no_jobs(at)
        (spoken,) = at.server.media.spoken
        assert secret not in spoken["input"]
        assert secret not in str([each.get("files") for each in at.lines()])


async def test_words_that_are_forgotten_later_take_their_sound_along() -> None:
    """The sound holds the words: its bytes go with the line that says them."""
    async with open_gateway(["The code is swordfish."], **VOICE) as at:
        await says(at)
        await no_jobs(at)
        (fact,) = next(each["files"] for each in at.lines() if each.get("kind") == "notice")
        digest = fact["blob"].rpartition("/")[2]
        assert digest in at.kept()
        await erase(at.channel.ask, "c", "/forget swordfish --purge")
        await wait_until_purged(at.parlour, SCOPE)
        assert digest not in at.kept()
        assert "swordfish" not in str(at.lines())


async def test_a_cap_in_money_holds_before_the_sound_is_made() -> None:
    """What a sound costs is reserved: beyond the cap there is text alone."""
    caps: dict[str, Any] = {"PARLOUR_CAPS__PERSON_USD_PER_DAY": "0.0001", "PARLOUR_LLM__MODEL": "own"}
    async with open_gateway(["A longer answer, more than a tenth of a mill."], **VOICE) as at:
        await says(at)
        await no_jobs(at)
        assert len(at.channel.arrived) == 1
    models = '{"own": {"model": "openai/test", "usd_per_million_input": 0, "usd_per_million_output": 0}}'
    async with open_gateway(
        ["A longer answer, more than a tenth of a mill."], **VOICE, **caps, PARLOUR_LLM__MODELS=models
    ) as at:
        await says(at)
        await no_jobs(at)
        assert at.server.media.spoken == []
        assert at.channel.arrived == []


async def test_a_kill_while_a_sound_is_made_sends_it_once(tmp_path: Path) -> None:
    """Killed while the model speaks: the text stands, and the next start sends the sound, once."""
    async with open_gateway(["one"], **VOICE) as at:
        at.server.media.gate = asyncio.Event()
        await says(at)
        await at.server.media.arrived.wait()
        home = at.parlour.kill(tmp_path / "killed")
        at.server.media.gate.set()
        await no_jobs(at)
        sent = at.parlour.kill(tmp_path / "sent")
    for folder, number in ((home, 1), (sent, 0)):
        async with open_gateway(home=folder, **VOICE) as at:
            await no_jobs(at)
            assert [file.data for file in at.channel.arrived] == [ogg(words=b"one")] * number
            assert at.server.requests == []
