"""Page and terminal of this machine are one person: in a new home, in one from before, and after `/unlink`."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from gateway.app import composition
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Sender, SessionKey
from gateway.text import find_command
from tests.e2e.agent.test_consolidation import SummaryModel, at_work
from tests.fakes.account_linking import CODE, settled
from tests.fakes.documents import stored_text
from tests.fakes.inprocess_gateway import InProcessGateway

PAGE, TERMINAL = "people/web%3aowner", "people/console%3aowner"
_NUMBERS = count(1)


async def say(parlour: InProcessGateway, channel: str, text: str) -> str:
    """Say something as the owner at the page or the terminal; return the last answer there."""
    key = SessionKey(channel, "owner")
    message = InboundMessage(
        key=key,
        message_id=f"{next(_NUMBERS):020d}",
        sender=Sender(id="owner", name="owner"),
        text=text,
        command=find_command(text, "parlour_bot"),
        sent_at=datetime.now(UTC),
        chat_kind=ChatKind.DIRECT,
        bot="parlour_bot",
    )
    await parlour.app.intake.receive(message)
    await settled(parlour)
    return (await parlour.app.memory.sessions.displayed_messages(key, limit=1))[-1].text


async def test_what_the_page_is_told_the_terminal_knows() -> None:
    """In a new home, from the first message on; `/unlink` does not separate the two."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await say(parlour, "web", "/remember the zeppelin is red")
        await say(parlour, "console", "what do you know?")
        assert "zeppelin" in str(model.prompts[-1])
        await say(parlour, "console", "/remember my boat is called Nora")
        await say(parlour, "web", "and now?")
        assert "Nora" in str(model.prompts[-1])
        assert not (parlour.home / TERMINAL).exists()
        for channel in ("web", "console"):
            assert "not linked" in await say(parlour, channel, "/unlink")


async def test_two_persons_of_an_older_home_become_one_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start joins them once: memory, versions with their reasons, and conversations of both are there."""
    home, model = tmp_path / "home", SummaryModel()

    async def as_before(*_: object) -> None:
        """Join nothing, as versions before did."""

    with monkeypatch.context() as before:
        before.setattr(composition, "join_local_accounts", as_before)
        async with at_work(model, home) as parlour:
            await say(parlour, "console", "/remember the zeppelin is red")
            await say(parlour, "console", "hello from the terminal")
            await say(parlour, "web", "/remember my boat is called Nora")
            await say(parlour, "web", "hello from the page")
            assert "zeppelin" not in str(model.prompts[-1])
            assert (home / PAGE).is_dir()
            assert (home / TERMINAL).is_dir()
    for _ in range(2):
        async with at_work(model, home) as parlour:
            person = parlour.app.store.links.accounts("console%3aowner")
            assert [each.account.name for each in person] == ["console%3aowner", "web%3aowner"]  # the older remains
            assert not (home / PAGE).exists()
            for channel, said in (("web", "hello from the page"), ("console", "hello from the terminal")):
                await say(parlour, channel, "what do you know?")
                prompt = str(model.prompts[-1])
                assert all(word in prompt for word in ("zeppelin", "Nora", said))
            assert "saved on request" in await say(parlour, "console", "/memory why boat")
    assert stored_text(home, TERMINAL).count("Nora") == 1


async def test_page_and_terminal_leave_another_account_together() -> None:
    """Linked to an older account, `/unlink` at either separates both from it, and they stay one person."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await parlour.channel.ask("ann", "/remember my cat is Tom", sender="ann")
        await parlour.channel.ask("ann", "hello", sender="ann")
        found = CODE.search(await parlour.channel.ask("ann", "/link", sender="ann"))
        assert found is not None
        await say(parlour, "web", f"/link {found[1]}")
        await say(parlour, "web", "/link yes")
        await parlour.channel.ask("ann", "/link yes", sender="ann")
        await settled(parlour)
        await say(parlour, "console", "/remember my boat is called Nora")
        await say(parlour, "web", "what do you know?")
        assert all(word in str(model.prompts[-1]) for word in ("Tom", "Nora"))
        await say(parlour, "console", "/unlink")
        for channel in ("web", "console"):
            await say(parlour, channel, "and now?")
            assert "Tom" not in str(model.prompts[-1])
        links = parlour.app.store.links
        linked = links.accounts(links.person(PlatformAccount(kind="web", id="owner")))
        assert {each.account.name for each in linked} == {"web%3aowner", "console%3aowner"}
        assert not links.accounts("pocket%3aann")
