"""`/forget` shows what would go and asks; a yes erases what matches then, once; a no erases nothing."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.base.transcript_lines import utc_now
from agent.memory.editing.staged_changes import ERASURE_EXPIRES_AFTER
from agent.memory.jobs.job_runner import JobRunner
from gateway.events import InboundKind
from tests.e2e.agent.test_consolidation import SummaryModel
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes import documents
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import erase, memory, stored_changes

ANN, ROOM = "people/pocket%3aann", "chats/pocket%3aroom"
DECIDED = "This was already decided, or it expired"


def transcript(home: Path, scope: str = ANN) -> str:
    """Return the messages of a scope as its files hold them."""
    return "\n".join(path.read_text() for path in sorted((home / scope / "sessions").glob("*.jsonl")))


def yes(question: str) -> str:
    """Return the command of the button Yes."""
    found = re.search(r"/memory approve (f[a-z2-7]{16})", question)
    assert found, question
    return found[0]


async def talk_of_tea(parlour: InProcessGateway) -> None:
    """Remember and say something about tea, and about words that contain it."""
    for fact in ("I like tea", "My team meets on Mondays", "I never eat steak", "Two **teas** a day"):
        await parlour.channel.ask("ann", f"/remember {fact}")
    for text in ("tea is on the table", "instead of the team", "a steady steak", "green\ntea, please"):
        await parlour.channel.ask("ann", text)
    await parlour.idle()


async def test_the_question_shows_amounts_and_examples_and_erases_nothing() -> None:
    """Whole words are counted and shown; team, steak and instead are not; nothing changes before the yes."""
    async with gateway(model=SummaryModel()) as parlour:
        await talk_of_tea(parlour)
        before = transcript(parlour.home), memory(parlour, ANN)
        question = await parlour.channel.ask("ann", "/forget tea")
        # Of the messages: two requests to remember, two messages and the answers that repeat them.
        assert question.startswith("I would erase 2 remembered lines, 0 summary lines and 6 messages:")
        assert "`- I like tea`" in question
        assert not any(word in question for word in ("team", "steak", "instead", "steady"))
        assert "and 3 more" in question
        await parlour.idle()
        assert (transcript(parlour.home)[: len(before[0])], memory(parlour, ANN)) == before
        assert "I like tea" in await parlour.channel.ask("ann", "/memory pending")
        answer = await parlour.channel.ask("ann", yes(question))
        assert answer.startswith("Done. Erased: 2 remembered lines, 0 summary lines and 6 messages.")
        assert not re.search(r"\bteas?\b", answer)
        await parlour.idle()
        assert memory(parlour, ANN) == "- My team meets on Mondays\n- I never eat steak\n"
        left = transcript(parlour.home)
        assert "instead of the team" in left
        assert "tea is on the table" not in left
        assert (await parlour.channel.ask("ann", "/memory pending")).startswith("No changes are waiting")


@pytest.mark.parametrize("purge", ["", " --purge"])
async def test_a_preview_for_a_group_is_answered_in_the_direct_chat_that_showed_it(purge: str) -> None:
    """Telegram shows it there: the requester's yes erases their own words in the group, nobody else's yes does."""
    async with gateway(model=SummaryModel(), policy=OPEN) as parlour:
        ask = parlour.channel.ask
        for sender in ("ann", "bob"):
            await ask("room", f"tea, says {sender}", sender=sender, group=True)
        await ask("ann", "tea at home")
        question = await ask("room", f"/forget tea{purge}", sender="ann", group=True)
        assert (await ask("bob", yes(question), sender="bob")).startswith("No waiting change")
        assert "erasing this from the group" in await ask("ann", yes(question))
        assert (await ask("ann", yes(question))).startswith("No waiting change")
        await wait_until_purged(parlour, ROOM)
        left = transcript(parlour.home, ROOM)
        assert "tea, says ann" not in left
        assert "tea, says bob" in left
        assert "tea at home" in transcript(parlour.home)
        assert not await stored_changes(parlour, ROOM)


async def test_a_no_or_an_admins_yes_in_the_direct_chat_erases_nothing_in_the_group() -> None:
    """A no discards the question; whether somebody is an admin is known in the group alone."""
    async with gateway(model=SummaryModel(), policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("room", "tea, says Bob", sender="bob", group=True)
        question = await ask("room", "/forget tea", sender="ann", group=True, is_admin=True)
        assert "Send the command in the group" in await ask("ann", yes(question))
        assert (await ask("ann", yes(question).replace("approve", "reject"))).startswith("Rejected")
        await parlour.idle()
        assert "tea, says Bob" in transcript(parlour.home, ROOM)
        assert not await stored_changes(parlour, ROOM)


async def test_a_no_erases_nothing() -> None:
    """The staged words are deleted, and a later yes is answered as decided."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember I like tea")
        question = await parlour.channel.ask("ann", "/forget tea")
        command = yes(question)
        assert (await parlour.channel.ask("ann", command.replace("approve", "reject"))).startswith("Rejected")
        assert not await stored_changes(parlour, ANN)
        await parlour.channel.say("ann", command, kind=InboundKind.BUTTON, number="")
        posts = await parlour.channel.posted("ann", 4)
        assert posts[-1].text.startswith(DECIDED)
        assert memory(parlour, ANN) == "- I like tea\n"


async def test_what_matches_is_decided_at_the_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message and a fact from after the question go too, and the answer counts them.

    It counts the fact also if no job has written it yet: a yes does not wait in the session queue.
    """

    async def begin_none(_runner: JobRunner, _tasks: asyncio.TaskGroup) -> bool:
        return False

    monkeypatch.setattr(JobRunner, "_begin_due", begin_none)
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember I like tea")
        question = await parlour.channel.ask("ann", "/forget tea")
        assert question.startswith("I would erase 1 remembered line, 0 summary lines and 1 message:")
        await parlour.channel.ask("ann", "/remember Tea at five")
        assert (await parlour.channel.ask("ann", yes(question))).startswith("Done. Erased: 2 remembered lines")
        assert memory(parlour, ANN) == ""


async def test_a_second_yes_has_no_effect() -> None:
    """Also for another question about the same words: they are gone, and so is it."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember I like tea")
        first, second = [await parlour.channel.ask("ann", "/forget tea") for _ in range(2)]
        assert (await parlour.channel.ask("ann", yes(first))).startswith("Done.")
        await parlour.channel.ask("ann", "/remember I like tea again")
        for command in (yes(first), yes(second)):
            assert (await parlour.channel.ask("ann", command)).startswith("No waiting change")
        assert memory(parlour, ANN) == "- I like tea again\n"


async def test_the_question_lapses(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a day a yes erases nothing and is told so."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember I like tea")
        question = await parlour.channel.ask("ann", "/forget tea")
        staging = parlour.app.commands.staging
        monkeypatch.setattr(staging, "_now", lambda: utc_now() + ERASURE_EXPIRES_AFTER + timedelta(minutes=1))
        await parlour.channel.say("ann", yes(question), kind=InboundKind.BUTTON, number="")
        posts = await parlour.channel.posted("ann", 3)
        assert posts[-1].text.startswith(DECIDED)
        assert memory(parlour, ANN) == "- I like tea\n"
        assert not await stored_changes(parlour, ANN)


async def test_after_a_full_disk_another_yes_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A press that failed has decided nothing."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember I like tea")
        question = await parlour.channel.ask("ann", "/forget tea")
        eraser = parlour.app.commands.erasure.word_eraser

        async def fail(*_: Any, **__: Any) -> int:
            raise OSError("the disk is full")

        with monkeypatch.context() as broken:
            broken.setattr(eraser, "_clear_transcripts", fail)
            assert (await parlour.channel.ask("ann", yes(question))).startswith("Something went wrong")
        assert (await parlour.channel.ask("ann", yes(question))).startswith("Done.")
        assert memory(parlour, ANN) == ""


async def test_nothing_found_offers_words_that_are_near() -> None:
    """A misspelled name is not erased; the names that are there are offered."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember Katharina sails")
        answer = await parlour.channel.ask("ann", "/forget Katherina")
        assert answer.startswith("I found nothing")
        assert "`katharina`" in answer
        assert "/memory approve" not in answer


async def test_examples_are_short_and_harmless() -> None:
    """A long line is cut around the words, and no markup of it works."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask(
            "ann", f"/remember [x](https://evil.example) `code` @everyone {'long ' * 100} tea bag"
        )
        question = await parlour.channel.ask("ann", "/forget tea")
        (example,) = {line for line in question.splitlines() if "tea bag" in line and "remember" not in line}
        assert example.startswith("- `…")
        assert len(example) < 200
        assert example.count("`") == 2


async def test_the_transcript_holds_no_copy_of_the_examples() -> None:
    """It shows that was asked, with amounts; of a purge not even the words."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember the quokka is red")
        await parlour.idle()
        before = transcript(parlour.home).count("quokka")
        await parlour.channel.ask("ann", "/forget quokka --purge")
        await parlour.idle()
        assert transcript(parlour.home).count("quokka") == before
        assert "I would erase 1 remembered line" in transcript(parlour.home)


async def test_in_a_group_the_requester_or_an_admin_says_yes() -> None:
    """A member's question erases that member's messages, whoever says yes; another member may not."""
    async with gateway(policy=OPEN, model=SummaryModel()) as parlour:
        room: dict[str, Any] = {"group": True}
        for name in ("ann", "bob"):
            await parlour.channel.ask("room", f"/remember {name} likes tea", sender=name, **room)
        question = await parlour.channel.ask("room", "/forget tea", sender="ann", **room)
        assert question.startswith("I would erase 1 remembered line, 0 summary lines and 1 message:")
        assert "bob" not in question
        assert (await parlour.channel.ask("room", yes(question), sender="bob", **room)).startswith("Only an admin")
        done = await parlour.channel.ask("room", yes(question), sender="eve", is_admin=True, **room)
        assert done.startswith("Done. Erased: 1 remembered line, 0 summary lines and 1 message.")
        assert memory(parlour, ROOM) == "- bob likes tea\n"
        assert (
            await erase(parlour.channel.ask, "room", "/forget tea", sender="eve", is_admin=True, **room)
        ).startswith("Done. Erased: 1 remembered line")
        assert memory(parlour, ROOM) == ""
        assert documents.stored_changes(parlour.home, ROOM)[0].by == "pocket%3aeve"


async def test_an_admin_who_is_one_no_longer_erases_their_own_words_alone() -> None:
    """Rights count at the yes: the role may have been lost since the question."""
    async with gateway(policy=OPEN, model=SummaryModel()) as parlour:
        room: dict[str, Any] = {"group": True}
        await parlour.channel.ask("room", "/remember bob likes tea", sender="bob", **room)
        await parlour.channel.ask("room", "/remember eve likes tea", sender="eve", **room)
        question = await parlour.channel.ask("room", "/forget tea", sender="eve", is_admin=True, **room)
        assert question.startswith("I would erase 2 remembered lines")
        answer = await parlour.channel.ask("room", yes(question), sender="eve", **room)
        assert answer.startswith("Done. Erased: 1 remembered line")
        assert "An admin of this chat" in answer
        assert memory(parlour, ROOM) == "- bob likes tea\n"


@pytest.mark.parametrize("purge", ["", " --purge"])
async def test_a_question_stays_when_the_words_of_its_examples_are_erased(purge: str) -> None:
    """Two questions quote each other's words: the yes to one takes its own out of the other, which can be answered."""
    async with gateway(model=SummaryModel()) as parlour:
        ask = parlour.channel.ask
        await ask("ann", "tea and coffee")
        await ask("ann", "coffee alone")
        about_tea, about_coffee = await ask("ann", f"/forget tea{purge}"), await ask("ann", f"/forget coffee{purge}")
        await ask("ann", yes(about_tea))
        await wait_until_purged(parlour, ANN)
        staged = str(await stored_changes(parlour, ANN))
        assert "coffee alone" in staged
        assert not re.search(r"\btea\b", staged)
        assert (await ask("ann", yes(about_coffee))).startswith("Done. Erased:")
        await wait_until_purged(parlour, ANN)
        assert "coffee alone" not in transcript(parlour.home)
