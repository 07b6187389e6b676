"""Two accounts, one person: what is remembered goes where the person is, and comes apart by where it came from."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from tests.e2e.agent.test_consolidation import SummaryModel, at_work, talk
from tests.fakes.account_linking import code_of, link, settled, summarised, unlink
from tests.fakes.documents import stored_states, stored_text
from tests.fakes.inprocess_gateway import InProcessGateway

ANN, BOB = "people/pocket%3aann", "people/pocket%3abob"


def everything(home: Path, scope: str) -> str:
    """Return every file of a scope that is text, versions included."""
    folder = home / scope
    texts = [path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = stored_states(home, scope) if folder.is_dir() else []
    return "\n".join([*texts, *(text for each in kept for text in each.texts.values())])


async def say(parlour: InProcessGateway, account: str, text: str) -> str:
    """Say something in an account's direct chat."""
    return await parlour.channel.ask(account, text, sender=account)


async def test_two_accounts_are_one_person_and_come_apart_again() -> None:
    """The older survives; each account knows what either said; apart again, each has its own, and answers are gone."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await say(parlour, "ann", "/remember the zeppelin is red")
        await say(parlour, "ann", "hello from ann")
        await say(parlour, "bob", "/remember my boat is called Nora")
        await say(parlour, "bob", "hello from bob")
        await link(parlour, "bob", "ann")
        assert not (parlour.home / BOB).exists()
        assert (parlour.home / ANN / "sessions/pocket%3abob.jsonl").exists()
        for account in ("ann", "bob"):
            await say(parlour, account, "what do you know?")
            assert "zeppelin" in str(model.prompts[-1])
            assert "Nora" in str(model.prompts[-1])
        assert "hello from bob" in str(model.prompts[-1])  # their conversation goes on
        await say(parlour, "bob", "/remember my cat is Tom")
        why = await say(parlour, "ann", "/memory why boat")
        assert "saved on request" in why
        await say(parlour, "ann", "/remember my dog is Bello")
        await say(parlour, "ann", "tell me of the cat")
        await unlink(parlour, "ann")
        await say(parlour, "ann", "and now?")
        mine = str(model.prompts[-1])
        assert "zeppelin" in mine
        assert "Bello" in mine
        assert "Nora" not in mine
        assert "Tom" not in mine
        await say(parlour, "bob", "and now?")
        theirs = str(model.prompts[-1])
        assert "Nora" in theirs
        assert "Tom" in theirs
        assert "zeppelin" not in theirs
        assert "Bello" not in theirs
        await settled(parlour)
        assert not [word for word in ("Nora", "Tom") if word in everything(parlour.home, ANN)]
        assert not [word for word in ("zeppelin", "Bello") if word in everything(parlour.home, BOB)]
        assert "hello from bob" in everything(parlour.home, BOB)


async def test_summaries_go_with_their_conversation() -> None:
    """What was consolidated of an account's chat, before or while it was linked, is that account's."""

    def summarise(n: int, memory: str) -> dict[str, str]:
        said = model.asked[-1].rpartition("## Conversation")[2]
        who = "boats" if "boat" in said else "airships"
        return {
            "history_entry": f"[2026-11-22 10:00] They spoke of {who} ({n}).",
            "memory_update": f"{memory}\n- likes {who}, part {n}".strip(),
        }

    model = SummaryModel(summarise)
    async with at_work(model) as parlour:
        for n in range(6):
            await say(parlour, "ann", f"airship {n}")
            await say(parlour, "bob", f"boat {n}")
        await link(parlour, "ann", "bob")
        for n in range(6):
            await say(parlour, "bob", f"another boat {n}")
        await settled(parlour)
        await say(parlour, "ann", "/unlink")
        await settled(parlour)
        await summarised(parlour, ANN, BOB)
        assert "boats" not in everything(parlour.home, ANN)
        assert "airships" not in everything(parlour.home, BOB)
        assert "likes boats" in stored_text(parlour.home, BOB)
        assert "likes airships" in stored_text(parlour.home, ANN)


async def test_a_phished_code_needs_a_yes_that_says_who_reads_what() -> None:
    """Who typed somebody's code is told who would read their memory; without their yes nothing is linked."""
    async with at_work(SummaryModel()) as parlour:
        await say(parlour, "ann", "/remember the zeppelin is red")
        code = await code_of(parlour, "eve")
        asked = await say(parlour, "ann", f"/link {code}")
        assert "pocket:eve" in asked
        assert "can read everything I remember about you" in asked
        told = (await parlour.channel.posted("eve", 2))[-1].text
        assert "pocket:ann" in told
        assert "has to confirm" in await say(parlour, "eve", "/link yes")
        assert "The accounts were not linked" in await say(parlour, "ann", "/link no")
        assert "no link request" in await say(parlour, "eve", "/link yes")
        assert "code is unknown" in await say(parlour, "ann", f"/link {code}")
        await settled(parlour)
        assert not parlour.app.store.links.accounts("pocket%3aann")


async def test_a_code_is_good_once_in_a_direct_chat_and_guessing_is_locked(tmp_path: Path) -> None:
    """Five wrong codes lock the account for an hour, also over a restart; a group sees none; no transcript has one."""
    home = tmp_path / "home"
    async with at_work(SummaryModel(), home) as parlour:
        code = await code_of(parlour, "ann")
        group = await parlour.channel.ask("room", f"/link {code}", sender="bob", group=True, is_addressed=True)
        assert "has been revoked" in group
        assert "code is unknown" in await say(parlour, "bob", f"/link {code}")
        code = await code_of(parlour, "ann")
        assert "same person" in await say(parlour, "ann", f"/link {code}")
        for _ in range(4):
            assert "code is unknown" in await say(parlour, "bob", "/link ABCDEFGH")
        assert "minute" in await say(parlour, "bob", f"/link {code}")
        await parlour.idle()
        transcript = (home / ANN / "sessions/pocket%3aann.jsonl").read_text()
        assert transcript.count(code) == 1  # as ann typed it
        notes = await parlour.app.store.links.notes()
        assert not any(code in name or code in value for name, value in notes.items())
    async with at_work(SummaryModel(), home) as parlour:
        assert "minute" in await say(parlour, "bob", f"/link {code}")


async def test_a_conversation_goes_on_through_a_link_and_a_restart(tmp_path: Path) -> None:
    """The younger account's window is read from where its transcript stands now."""
    model = SummaryModel()
    home = tmp_path / "home"
    async with at_work(model, home) as parlour:
        await talk(parlour, 1)
        await say(parlour, "bob", "the first word")
        await link(parlour, "ann", "bob")
        await say(parlour, "bob", "the second word")
        await parlour.idle()
    async with at_work(model, home) as parlour:
        await say(parlour, "bob", "the third word")
        sent = str(model.prompts[-1])
        assert sent.index("the first word") < sent.index("the second word") < sent.index("the third word")
        assert [each.account.name for each in parlour.app.store.links.accounts("pocket%3aann")] == [
            "pocket%3aann",
            "pocket%3abob",
        ]


async def test_a_link_waits_for_the_turn_that_runs(tmp_path: Path) -> None:
    """A turn ends in the scope it began in, in front of everything that moves; what comes meanwhile is answered."""

    class WaitingModel(SummaryModel):
        """Thinks until it is let go on, when it is told to wait."""

        def __init__(self) -> None:
            super().__init__()
            self.may, self.waits = asyncio.Event(), asyncio.Event()

        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            """Wait where the last message says so."""
            if request.purpose == "answer" and "wait here" in str(request.messages[-1]["content"]):
                self.waits.set()
                await self.may.wait()
            return await super().complete(request, sink=sink)

    model = WaitingModel()
    async with at_work(model, tmp_path / "home") as parlour:
        await say(parlour, "ann", "hello")
        await say(parlour, "bob", "hello")
        code = await code_of(parlour, "ann")
        await say(parlour, "bob", f"/link {code}")
        await say(parlour, "ann", "/link yes")
        _, answer = await parlour.channel.say("ann", "wait here", sender="ann")
        await model.waits.wait()
        await say(parlour, "bob", "/link yes")
        await say(parlour, "bob", "still myself")
        assert not parlour.app.store.links.accounts("pocket%3aann")
        model.may.set()
        await answer
        await settled(parlour)
        assert not (parlour.home / BOB).exists()
        await say(parlour, "bob", "and now?")
        assert "still myself" in str(model.prompts[-1])
        await parlour.idle()
        assert "wait here" in (parlour.home / ANN / "sessions/pocket%3aann.jsonl").read_text()
