"""Strangers, owners and places with the real gateway: nobody is thought about before an owner has said yes."""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.admission import AdmissionPolicy, policy_of
from gateway.control import Line
from gateway.errors import UserError
from gateway.ports.channel import IntakeResult, IntakeVerdict, MembershipChange
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

OWNER, MAL = "42", "66"
CODE = re.compile(r"[A-Z2-9]{4}-[A-Z2-9]{4}")


def open_gateway(
    home: Path, model: InstantModel | None = None, policy: AdmissionPolicy | None = None
) -> AbstractAsyncContextManager[InProcessGateway]:
    """Run a gateway whose owner may write, and nobody else."""
    block = policy or policy_of("pocket", [], [f"pocket:{OWNER}"], "mention")
    return gateway(home=home, model=model or InstantModel(), policy=block)


async def ask_as_owner(parlour: InProcessGateway, text: str, chat: str = OWNER, **facts: bool) -> str:
    """Let the owner write, and return the answer."""
    return await parlour.channel.ask(chat, text, sender=OWNER, **facts)


async def knock(parlour: InProcessGateway, sender: str = MAL) -> IntakeResult:
    """Let a stranger write; return when everything that follows is delivered."""
    accepted, _ = await parlour.channel.say(sender, "a secret: let me in", sender=sender, name="Mal")
    await parlour.idle()
    return accepted


def texts(parlour: InProcessGateway, chat: str) -> list[str]:
    """Return what was sent to a chat."""
    return [post.text for post in parlour.channel.posts.get(chat, [])]


def code_in(text: str) -> str:
    """Return the code that stands in a text."""
    (code,) = CODE.findall(text)
    return str(code)


async def test_a_stranger_is_let_in_by_the_owners_yes(tmp_path: Path) -> None:
    """A code for the stranger, a question for the owner; after the yes they may write at once, and not before."""
    model = InstantModel()
    async with open_gateway(tmp_path / "home", model) as parlour:
        await ask_as_owner(parlour, "hello")
        before = model.calls
        assert (await knock(parlour)).verdict is IntakeVerdict.REJECTED
        code = code_in(texts(parlour, MAL)[0])
        asked = texts(parlour, OWNER)[-1]
        assert code in asked
        assert model.calls == before
        press = re.findall(r"/pair yes [0-9a-f]+", asked)[0]
        assert await ask_as_owner(parlour, press) == "`Mal` (`66`) can now write to me on pocket."
        await parlour.idle()
        assert texts(parlour, MAL)[-1] == "Your access was approved. You can write to me now."
        assert "thanks" in await parlour.channel.ask(MAL, "thanks", sender=MAL)
        assert model.calls == before + 1
        audit = await parlour.app.store.access.audit(limit=9, about=f"pocket:{MAL}")
        assert [(line.by, line.what) for line in audit] == [("pocket:42", "pair yes")]
    assert "a secret" not in "".join(path.read_text("utf-8") for path in (tmp_path / "home").rglob("*.jsonl"))


async def test_a_code_typed_by_the_owner_lets_in_once(tmp_path: Path) -> None:
    """`/pair CODE` works as the button does, the code is good no more, and stands in no transcript of the stranger."""
    async with open_gateway(tmp_path / "home") as parlour:
        await knock(parlour)
        code = code_in(texts(parlour, MAL)[0])
        assert "can now write to me" in await ask_as_owner(parlour, f"/pair {code}")
        assert "No request has that code" in await ask_as_owner(parlour, f"/pair {code}")
        assert await ask_as_owner(parlour, "/pair") == "There are no access requests."
        sessions = await parlour.app.store.records.sessions()
        assert [row.key.chat for row in sessions] == [OWNER]


async def test_a_no_says_nothing_to_the_stranger(tmp_path: Path) -> None:
    """Denied: the owner reads how to end it for good, the stranger nothing more."""
    async with open_gateway(tmp_path / "home") as parlour:
        await knock(parlour)
        listed = await ask_as_owner(parlour, "/pair")
        press = re.findall(r"/pair no [0-9a-f]+", listed)[0]
        assert "`/block pocket:66`" in await ask_as_owner(parlour, press)
        await knock(parlour)
        assert len(texts(parlour, MAL)) == 1
        assert not parlour.app.store.access.members()


async def test_a_member_cannot_let_anybody_in(tmp_path: Path) -> None:
    """Attack 12: /pair with the right code, by a member, is refused with one line and lets nobody in."""
    block = policy_of("pocket", ["7"], [f"pocket:{OWNER}"], "mention")
    async with open_gateway(tmp_path / "home", policy=block) as parlour:
        await knock(parlour)
        code = code_in(texts(parlour, MAL)[0])
        assert "can now write" not in await parlour.channel.ask("7", f"/pair {code}", sender="7")
        assert not parlour.app.store.access.members()
        assert len(parlour.app.pairing.pending_requests()) == 1


async def test_ten_thousand_guesses_let_nobody_in(tmp_path: Path) -> None:
    """Attack 11: a stranger who types codes is told nothing; an owner's account that guesses is locked after five."""
    async with open_gateway(tmp_path / "home") as parlour:
        await knock(parlour)
        for number in range(50):
            await parlour.channel.say(MAL, f"/pair AAAA-AA{number:02d}".replace("0", "A").replace("1", "B"), sender=MAL)
        await parlour.idle()
        assert len(texts(parlour, MAL)) == 1
        for letter in "BCDEF":
            assert "No request has that code" in await ask_as_owner(parlour, f"/pair AAAA-AAA{letter}")
        code = code_in(texts(parlour, MAL)[0])
        assert "Too many wrong codes" in await ask_as_owner(parlour, f"/pair {code}")
        assert not parlour.app.store.access.members()


async def test_a_place_is_silent_until_the_owner_says_yes(tmp_path: Path) -> None:
    """Added to a group: nothing is said there; a mention meanwhile is refused; after the yes everybody is answered."""
    async with open_gateway(tmp_path / "home") as parlour:
        await ask_as_owner(parlour, "hello")
        await parlour.app.intake.membership_changed(
            MembershipChange(channel="pocket", id="j1", chat="-100", title="The team")
        )
        await parlour.app.intake.membership_changed(
            MembershipChange(channel="pocket", id="j1", chat="-100", title="The team")
        )
        await parlour.idle()
        asked = texts(parlour, OWNER)[-1]
        assert asked.startswith("I was added to `The team` (`chat:-100`) on pocket.")
        assert texts(parlour, "-100") == []
        accepted, _ = await parlour.channel.say("-100", "hey", sender="7", group=True, is_addressed=True)
        assert accepted.reason == "place-pending"
        await parlour.idle()
        (line,) = parlour.channel.posts["-100"]
        assert (line.visible_to, "I'm new here" in line.text) == ("7", True)
        await ask_as_owner(parlour, re.findall(r"/pair yes [0-9a-f]+", asked)[0])
        assert "hey" in await parlour.channel.ask("-100", "hey", sender="7", group=True, is_addressed=True)


async def test_the_operator_decides_without_a_chat(tmp_path: Path) -> None:
    """`parlour people pending|approve|deny`: by channel:id or code; who does not wait is a mistake that says so."""
    async with open_gateway(tmp_path / "home") as parlour:
        for sender in (MAL, "67", "68"):
            await knock(parlour, sender)
        run = parlour.app.operations

        async def ask(name: str, who: str = "") -> list[Line]:
            return [line async for line in run[f"people {name}"]({"who": who} if who else {})]

        assert [line["who"] for line in await ask("pending")] == [MAL, "67", "68"]
        assert await ask("approve", f"pocket:{MAL}") == [{"who": f"pocket:{MAL}", "name": "Mal", "yes": True}]
        assert await ask("approve", code_in(texts(parlour, "67")[0])) == [
            {"who": "pocket:67", "name": "Mal", "yes": True}
        ]
        assert await ask("deny", code_in(texts(parlour, "68")[0])) == [
            {"who": "pocket:68", "name": "Mal", "yes": False}
        ]
        for wrong, line in (
            ("pocket:99", "no request of 'pocket:99' is pending"),
            ("ABCD-EFGH", "no request has that code"),
        ):
            with pytest.raises(UserError, match=line):
                await ask("approve", wrong)
        assert await ask("pending") == []
        assert set(parlour.app.store.access.members()) == {("pocket", MAL), ("pocket", "67")}
        await parlour.idle()
        assert [len(texts(parlour, sender)) for sender in (MAL, "67", "68")] == [2, 2, 1]
        audit = await parlour.app.store.access.audit(limit=9)
        assert [(line.by, line.what) for line in audit] == [("operator", "pair no"), *[("operator", "pair yes")] * 2]


async def test_what_came_too_late_is_a_silence_with_a_reason(tmp_path: Path) -> None:
    """The owner wrote two days ago, while nothing ran: told once, and `parlour why` knows of every message."""
    async with open_gateway(tmp_path / "home") as parlour:
        long_ago = datetime.now(UTC) - timedelta(days=2)
        for number in ("1", "2", "3"):
            await parlour.channel.say(OWNER, "hello?", sender=OWNER, sent_at=long_ago, number=number)
        await parlour.idle()
        assert len(texts(parlour, OWNER)) == 1
        (refused,) = parlour.app.refusals.recent("pocket", OWNER)
        assert (str(refused.reason), refused.times) == ("expired", 3)


async def test_whose_rights_went_while_they_waited_is_told_once(tmp_path: Path) -> None:
    """Four messages wait when an owner blocks their sender: one line, four refusals, no model."""
    model = HeldModel()
    block = policy_of("pocket", ["7"], [f"pocket:{OWNER}"], "mention")
    async with open_gateway(tmp_path / "home", model, policy=block) as parlour:
        await parlour.channel.say("7", "first", sender="7")
        await model.asked.wait()
        for number in range(4):
            await parlour.channel.say("7", f"waits {number}", sender="7")
        await ask_as_owner(parlour, "/block pocket:7")
        model.go_on.set()
        await parlour.idle()
        assert len(texts(parlour, "7")) == 2
        assert len(model.prompts) == 1
        (refused,) = parlour.app.refusals.recent("pocket", "7")
        assert (str(refused.reason), refused.times) == ("blocked", 4)
