"""Who may write is decided in chat, at once; whatever the process survives, no decision is without its line."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from gateway.admission import policy_of
from gateway.events import SessionKey
from gateway.ports.access import OPERATOR, DecisionActor
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

OWNER, ANN, BOB = "1", "42", "43"
ROOM: dict[str, Any] = {"group": True, "is_addressed": True}


def open_gateway(home: Path | None = None) -> AbstractAsyncContextManager[InProcessGateway]:
    """Run a gateway with an owner, Ann, and a room that is let in."""
    policy = policy_of("pocket", (ANN, "chat:room"), (f"pocket:{OWNER}",), "mention")
    return gateway(home=home, model=InstantModel(), policy=policy)


async def ask_as_owner(parlour: InProcessGateway, text: str, chat: str = OWNER, **facts: Any) -> str:
    """Let the owner write, and return the answer."""
    return await parlour.channel.ask(chat, text, sender=OWNER, **facts)


async def lines(parlour: InProcessGateway) -> list[tuple[str, str, str, str, str]]:
    """Return the audit, the oldest first."""
    found = await parlour.app.store.access.audit(limit=50)
    return [(each.by, each.where, each.what, each.whom, each.outcome) for each in reversed(found)]


async def hears(parlour: InProcessGateway, who: str) -> bool:
    """Say whether *who* is heard."""
    accepted, _ = await parlour.channel.say(who, "hello", sender=who)
    await parlour.idle()
    return accepted.reason == ""


async def test_the_owner_lets_in_and_shuts_out_in_chat() -> None:
    """By id, by mention, by `here`, and in answer to a message; the list says how; each decision has its line."""
    async with open_gateway() as parlour:
        assert "can now write to me" in await ask_as_owner(parlour, f"/allow {BOB}")
        assert await hears(parlour, BOB)
        assert "is now blocked" in await ask_as_owner(parlour, f"/block <@{BOB}>")
        assert not await hears(parlour, BOB)
        listed = await ask_as_owner(parlour, "/people")
        assert f"`pocket:{ANN}`: allowed, from the settings" in listed
        assert f"`pocket:{BOB}`: blocked by `pocket:{OWNER}`" in listed
        assert "`pocket:chat:club` can now write" in await ask_as_owner(parlour, "/allow here", "club", **ROOM)
        assert "hello" in await parlour.channel.ask("club", "hello", sender="77", **ROOM)
        assert await lines(parlour) == [
            (f"pocket:{OWNER}", f"pocket:{OWNER}", "allow", f"pocket:{BOB}", "done"),
            (f"pocket:{OWNER}", f"pocket:{OWNER}", "block", f"pocket:{BOB}", "done"),
            (f"pocket:{OWNER}", "pocket:club", "allow", "pocket:chat:club", "done"),
        ]


async def test_what_cannot_be_decided_is_said_and_leaves_a_line() -> None:
    """Names, owners and nobody at all: a line that says what to do, and `refused` in the audit."""
    async with open_gateway() as parlour:
        assert "names are not unique" in await ask_as_owner(parlour, "/allow @bob")
        assert "by the setting" in await ask_as_owner(parlour, f"/block {OWNER}")
        assert "Add a user" in await ask_as_owner(parlour, "/block")
        assert "Add a user" in await ask_as_owner(parlour, "/block here")  # a direct chat is nobody else's
        refused = await parlour.channel.ask(ANN, f"/allow {BOB}", sender=ANN)
        assert refused == "Only an owner of this bot can use /allow."
        assert [(by, what, outcome) for by, _, what, _, outcome in await lines(parlour)] == [
            (f"pocket:{OWNER}", "allow", "refused"),
            (f"pocket:{OWNER}", "block", "refused"),
            (f"pocket:{OWNER}", "block", "refused"),
            (f"pocket:{OWNER}", "block", "refused"),
            (f"pocket:{ANN}", "allow", "refused"),
        ]
        assert not await hears(parlour, BOB)


async def test_a_kill_between_a_decision_and_its_commit_costs_no_line(tmp_path: Path) -> None:
    """The decision and its line are one write; the turn is run again, says so, and leaves no second one."""
    async with open_gateway(tmp_path / "home") as parlour:
        reached = _hang(parlour, "commit")
        await parlour.channel.say(OWNER, f"/allow {BOB}", sender=OWNER)
        await reached.wait()
        copy = parlour.kill(tmp_path / "killed")
        _let(parlour)
    async with open_gateway(copy) as parlour:
        await parlour.idle()
        told = [post.text for post in parlour.channel.posts[OWNER] if f"pocket:{BOB}" in post.text]
        assert told == [f"`pocket:{BOB}` can already write to me."]
        assert [(what, whom, outcome) for _, _, what, whom, outcome in await lines(parlour)] == [
            ("allow", f"pocket:{BOB}", "done")
        ]
        assert await hears(parlour, BOB)


async def test_a_kill_before_the_commit_leaves_neither_the_deed_nor_the_line(tmp_path: Path) -> None:
    """/new in a room: what it does and what the audit says of it are one write, done once after the start."""
    async with open_gateway(tmp_path / "home") as parlour:
        await parlour.channel.ask("room", "hello", sender=ANN, **ROOM)
        before = (await parlour.app.store.journal.session(pocket_key("room"))).transcript
        reached = _hang(parlour, "commit")
        await parlour.channel.say("room", "/new", sender="admin", is_admin=True, **ROOM)
        await reached.wait()
        copy = parlour.kill(tmp_path / "killed")
        assert await lines(parlour) == []
        _let(parlour)
    async with open_gateway(copy) as parlour:
        await parlour.idle()
        assert await lines(parlour) == [("pocket:admin", "pocket:room", "new", "", "done")]
        assert (await parlour.app.store.journal.session(pocket_key("room"))).transcript != before


async def test_a_command_that_was_stopped_half_way_has_its_line() -> None:
    """What it did before the stop is nobody's secret: the line says `stopped`, and who stopped it has one too."""
    async with open_gateway() as parlour:
        await parlour.channel.ask("room", "hello", sender=ANN, **ROOM)
        begun = asyncio.Event()

        async def hang(*_: Any, **__: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        parlour.app.commands.documents.undo = hang  # type: ignore[method-assign,assignment]
        await parlour.channel.say("room", "/memory undo abc", sender="admin", is_admin=True, **ROOM)
        await begun.wait()
        await parlour.channel.say("room", "/stop", sender=OWNER, **ROOM)
        await parlour.idle()
        found = [(by, what, outcome) for by, _, what, _, outcome in await lines(parlour)]
        assert sorted(found) == [(f"pocket:{OWNER}", "stop", "done"), ("pocket:admin", "memory undo", "stopped")]


async def test_who_is_blocked_while_a_command_waits_is_refused() -> None:
    """The row was accepted; when its turn comes its sender is blocked: nothing is done, and the line says so."""
    async with open_gateway() as parlour:
        await parlour.channel.ask("room", "hello", sender=ANN, **ROOM)
        reached = _hang(parlour, "claim")
        _, answered = await parlour.channel.say("room", "/new", sender="admin", is_admin=True, **ROOM)
        await reached.wait()
        decisions = parlour.app.access_control
        await decisions.block("pocket:admin", DecisionActor(by=OPERATOR, where="", id="o1"))
        reached.clear()
        _let(parlour)
        await answered
        assert ("pocket:admin", "pocket:room", "new", "", "refused") in await lines(parlour)


def pocket_key(chat: str) -> SessionKey:
    """Return a chat's key."""
    return SessionKey("pocket", chat)


_GATES: dict[int, asyncio.Event] = {}


def _hang(parlour: InProcessGateway, name: str) -> asyncio.Event:
    """Have the journal's *name* wait until `_let`; the event is set when somebody does."""
    journal: Any = parlour.app.store.journal
    reached, go = asyncio.Event(), asyncio.Event()
    _GATES[id(parlour)] = go
    plain = getattr(journal, name)

    async def held(*words: Any, **fields: Any) -> Any:
        reached.set()
        await go.wait()
        return await plain(*words, **fields)

    setattr(journal, name, held)
    return reached


def _let(parlour: InProcessGateway) -> None:
    _GATES.pop(id(parlour)).set()


async def test_the_owner_limits_one_person_in_chat() -> None:
    """From the next message on; shown with its use, taken back, and nobody else can."""
    async with open_gateway() as parlour:
        assert "No personal limits" in await ask_as_owner(parlour, "/quota")
        assert "has no limits" in await ask_as_owner(parlour, f"/quota {ANN}")
        assert "hello" in await parlour.channel.ask(ANN, "hello", sender=ANN)
        answer = await ask_as_owner(parlour, f"/quota {ANN} turns 2 tokens 5000")
        assert "apply from the next message" in answer
        assert "Used: 1 of 2 messages" in answer
        assert "again" in await parlour.channel.ask(ANN, "again", sender=ANN)
        assert "2 messages" in await parlour.channel.ask(ANN, "a third", sender=ANN)
        assert "only" in (await parlour.channel.ask(ANN, f"/quota {ANN} default", sender=ANN)).lower()
        assert f"- `pocket:{ANN}`: 2 messages in ten minutes, 5,000 tokens a day" in await ask_as_owner(
            parlour, "/quota"
        )
        await ask_as_owner(parlour, f"/quota {ANN} turns default")
        assert "messages" not in (await ask_as_owner(parlour, f"/quota {ANN}")).partition("`:")[2].splitlines()[0]
        assert "more" in await parlour.channel.ask(ANN, "more", sender=ANN)
        assert "are removed" in await ask_as_owner(parlour, f"/quota {ANN} default")
        for wrong in ("/quota tokens 5", f"/quota {ANN} tokens many", "/quota here tokens 5 turns"):
            assert "Name one person" in await ask_as_owner(parlour, wrong)
        assert [each for each in await lines(parlour) if each[2] == "quota" and each[3] == f"pocket:{ANN}"]
