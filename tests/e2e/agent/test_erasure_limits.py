"""What forgetting does not reach is named in its answer, where there is any of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import UserError
from gateway.events import SessionKey
from gateway.operations.people import PeopleOperations
from tests.e2e.agent.test_channel_history import group
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.staged_changes import erase

SAVED = "`downloads/`"


def put(parlour: InProcessGateway, name: str) -> Path:
    """Put a file into the home."""
    path = parlour.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a zeppelin")
    return path


async def test_what_the_terminal_saved_is_named_to_whoever_talks_there() -> None:
    """In the terminal's own chat, and to the operator; nobody else hears of that folder."""
    async with gateway() as parlour:
        service, terminal, scope = (
            parlour.app.commands.erasure,
            SessionKey("console", "me"),
            "people/console%3ame",
        )
        people = PeopleOperations(parlour.app).forget
        assert not await service.has_downloads(scope, terminal)
        for person in ("console%3ame", "pocket%3aann"):
            put(parlour, f"people/{person}/USER.md")
        [line] = [each async for each in people("console:me")]
        assert not any("downloads/" in each for each in line["remains"])
        put(parlour, "downloads/plan.pdf")
        assert await service.has_downloads(scope, terminal)
        [line] = [each async for each in people("console:me")]
        assert any("downloads/" in each for each in line["remains"])
        [line] = [each async for each in people("pocket:ann")]
        assert not any("downloads/" in each for each in line["remains"])
        assert SAVED not in await erase(parlour.channel.ask, "ann", "/forget zeppelin --purge")


async def test_what_was_overheard_of_somebody_who_never_wrote_to_the_bot_is_named() -> None:
    """It stands under a name alone, so forgetting an account does not find it; what is named to do takes it out."""
    async with group() as here:
        now = datetime.now(UTC)
        here.sources.tell("g", "the zinnwald plumber is mine", by="Cleo", at=now - timedelta(minutes=1))
        await here.ask("what shall we do?", sent_at=now)
        await here.parlour.idle()
        with pytest.raises(UserError, match=r"nothing is stored about pocket:cleo.*/forget NAME --purge.*quoted"):
            await anext(aiter(PeopleOperations(here.parlour.app).forget("pocket:cleo")))
        assert "zinnwald" in here.lines()[0]["quoted"]
        await erase(here.parlour.channel.ask, "g", "/forget Cleo --purge", group=True, is_admin=True)
        await wait_until_purged(here.parlour, "chats/pocket%3ag")
        assert "zinnwald" not in str(here.lines())
