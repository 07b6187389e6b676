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


def house(home: Path | None = None) -> AbstractAsyncContextManager[InProcessGateway]:
    """Run a gateway with an owner, Ann, and a room that is let in."""
    policy = policy_of("pocket", (ANN, "chat:room"), (f"pocket:{OWNER}",), "mention")
    return gateway(home=home, model=InstantModel(), policy=policy)


async def ask_as_owner(pocket: InProcessGateway, text: str, chat: str = OWNER, **facts: Any) -> str:
    """Let the owner write, and return the answer."""
    return await pocket.channel.ask(chat, text, sender=OWNER, **facts)


async def lines(pocket: InProcessGateway) -> list[tuple[str, str, str, str, str]]:
    """Return the audit, the oldest first."""
    found = await pocket.app.store.access.audit(limit=50)
    return [(each.by, each.where, each.what, each.whom, each.outcome) for each in reversed(found)]


async def hears(pocket: InProcessGateway, who: str) -> bool:
    """Say whether *who* is heard."""
    accepted, _ = await pocket.channel.say(who, "hello", sender=who)
    await pocket.idle()
    return accepted.reason == ""


async def test_the_owner_lets_in_and_shuts_out_in_chat() -> None:
    """By id, by mention, by `here`, and in answer to a message; the list says how; each decision has its line."""
    async with house() as pocket:
        assert "can now write to me" in await ask_as_owner(pocket, f"/allow {BOB}")
        assert await hears(pocket, BOB)
        assert "is now blocked" in await ask_as_owner(pocket, f"/block <@{BOB}>")
        assert not await hears(pocket, BOB)
        listed = await ask_as_owner(pocket, "/people")
        assert f"`pocket:{ANN}`: allowed, from the settings" in listed
        assert f"`pocket:{BOB}`: blocked by `pocket:{OWNER}`" in listed
        assert "`pocket:chat:club` can now write" in await ask_as_owner(pocket, "/allow here", "club", **ROOM)
        assert "hello" in await pocket.channel.ask("club", "hello", sender="77", **ROOM)
        assert await lines(pocket) == [
            (f"pocket:{OWNER}", f"pocket:{OWNER}", "allow", f"pocket:{BOB}", "done"),
            (f"pocket:{OWNER}", f"pocket:{OWNER}", "block", f"pocket:{BOB}", "done"),
            (f"pocket:{OWNER}", "pocket:club", "allow", "pocket:chat:club", "done"),
        ]


async def test_what_cannot_be_decided_is_said_and_leaves_a_line() -> None:
    """Names, owners and nobody at all: a line that says what to do, and `refused` in the audit."""
    async with house() as pocket:
        assert "names are not unique" in await ask_as_owner(pocket, "/allow @bob")
        assert "by the setting" in await ask_as_owner(pocket, f"/block {OWNER}")
        assert "Add a user" in await ask_as_owner(pocket, "/block")
        assert "Add a user" in await ask_as_owner(pocket, "/block here")  # a direct chat is nobody else's
        refused = await pocket.channel.ask(ANN, f"/allow {BOB}", sender=ANN)
        assert refused == "Only an owner of this bot can use /allow."
        assert [(by, what, outcome) for by, _, what, _, outcome in await lines(pocket)] == [
            (f"pocket:{OWNER}", "allow", "refused"),
            (f"pocket:{OWNER}", "block", "refused"),
            (f"pocket:{OWNER}", "block", "refused"),
            (f"pocket:{OWNER}", "block", "refused"),
            (f"pocket:{ANN}", "allow", "refused"),
        ]
        assert not await hears(pocket, BOB)


async def test_a_kill_between_a_decision_and_its_commit_costs_no_line(tmp_path: Path) -> None:
    """The decision and its line are one write; the turn is run again, says so, and leaves no second one."""
    async with house(tmp_path / "home") as pocket:
        reached = _hang(pocket, "commit")
        await pocket.channel.say(OWNER, f"/allow {BOB}", sender=OWNER)
        await reached.wait()
        copy = pocket.kill(tmp_path / "killed")
        _let(pocket)
    async with house(copy) as pocket:
        await pocket.idle()
        told = [post.text for post in pocket.channel.posts[OWNER] if BOB in post.text]
        assert told == [f"`pocket:{BOB}` can already write to me."]
        assert [(what, whom, outcome) for _, _, what, whom, outcome in await lines(pocket)] == [
            ("allow", f"pocket:{BOB}", "done")
        ]
        assert await hears(pocket, BOB)


async def test_a_kill_before_the_commit_leaves_neither_the_deed_nor_the_line(tmp_path: Path) -> None:
    """/new in a room: what it does and what the audit says of it are one write, done once after the start."""
    async with house(tmp_path / "home") as pocket:
        await pocket.channel.ask("room", "hello", sender=ANN, **ROOM)
        before = (await pocket.app.store.journal.session(pocket_key("room"))).transcript
        reached = _hang(pocket, "commit")
        await pocket.channel.say("room", "/new", sender="admin", is_admin=True, **ROOM)
        await reached.wait()
        copy = pocket.kill(tmp_path / "killed")
        assert await lines(pocket) == []
        _let(pocket)
    async with house(copy) as pocket:
        await pocket.idle()
        assert await lines(pocket) == [("pocket:admin", "pocket:room", "new", "", "done")]
        assert (await pocket.app.store.journal.session(pocket_key("room"))).transcript != before


async def test_a_command_that_was_stopped_half_way_has_its_line() -> None:
    """What it did before the stop is nobody's secret: the line says `stopped`, and who stopped it has one too."""
    async with house() as pocket:
        await pocket.channel.ask("room", "hello", sender=ANN, **ROOM)
        begun = asyncio.Event()

        async def hang(*_: Any, **__: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        pocket.app.commands.memory.documents.undo = hang  # type: ignore[method-assign,assignment]
        await pocket.channel.say("room", "/memory undo abc", sender="admin", is_admin=True, **ROOM)
        await begun.wait()
        await pocket.channel.say("room", "/stop", sender=OWNER, **ROOM)
        await pocket.idle()
        found = [(by, what, outcome) for by, _, what, _, outcome in await lines(pocket)]
        assert sorted(found) == [(f"pocket:{OWNER}", "stop", "done"), ("pocket:admin", "memory undo", "stopped")]


async def test_who_is_blocked_while_a_command_waits_is_refused() -> None:
    """The row was accepted; when its turn comes its sender is blocked: nothing is done, and the line says so."""
    async with house() as pocket:
        await pocket.channel.ask("room", "hello", sender=ANN, **ROOM)
        reached = _hang(pocket, "claim")
        _, answered = await pocket.channel.say("room", "/new", sender="admin", is_admin=True, **ROOM)
        await reached.wait()
        decisions = pocket.app.access.decisions
        await decisions.block("pocket:admin", DecisionActor(by=OPERATOR, where="", id="o1"))
        reached.clear()
        _let(pocket)
        await answered
        assert ("pocket:admin", "pocket:room", "new", "", "refused") in await lines(pocket)


def pocket_key(chat: str) -> SessionKey:
    """Return a chat's key."""
    return SessionKey("pocket", chat)


_GATES: dict[int, asyncio.Event] = {}


def _hang(pocket: InProcessGateway, name: str) -> asyncio.Event:
    """Have the journal's *name* wait until `_let`; the event is set when somebody does."""
    journal: Any = pocket.app.store.journal
    reached, go = asyncio.Event(), asyncio.Event()
    _GATES[id(pocket)] = go
    plain = getattr(journal, name)

    async def held(*words: Any, **fields: Any) -> Any:
        reached.set()
        await go.wait()
        return await plain(*words, **fields)

    setattr(journal, name, held)
    return reached


def _let(pocket: InProcessGateway) -> None:
    _GATES.pop(id(pocket)).set()
