"""What forgetting does not reach is named in its answer, where there is any of it."""

from __future__ import annotations

from pathlib import Path

from gateway.app.people_operations import PeopleOperations
from gateway.events import SessionKey
from tests.fakes.pocket import Pocket, gateway

OWN, SAVED = "`files/`", "`downloads/`"


def put(pocket: Pocket, name: str) -> Path:
    """Put a file into the home."""
    path = pocket.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a zeppelin")
    return path


async def test_own_files_are_named_where_there_are_some() -> None:
    """Forgetting for good leaves them, and says so; forgetting everything takes them along."""
    async with gateway() as pocket:
        assert OWN not in await pocket.channel.ask("ann", "/forget zeppelin --purge")
        path = put(pocket, "people/pocket%3aann/files/plan.md")
        assert OWN in await pocket.channel.ask("ann", "/forget zeppelin --purge")
        assert path.exists()
        assert OWN not in await pocket.channel.ask("ann", "/forget everything yes")


async def test_what_the_terminal_saved_is_named_to_whoever_talks_there() -> None:
    """In the terminal's own chat, and to the operator; nobody else hears of that folder."""
    async with gateway() as pocket:
        desk, terminal, scope = pocket.app.house.forgetter, SessionKey("console", "me"), "people/console%3ame"
        people = PeopleOperations(pocket.app).forget
        assert await desk.beyond(scope, terminal) == []
        [line] = [each async for each in people({"person": "console:me"})]
        assert not any("downloads/" in each for each in line["remains"])
        put(pocket, "downloads/plan.pdf")
        for is_all in (False, True):
            assert await desk.beyond(scope, terminal, is_all=is_all) == ["downloads"]
        [line] = [each async for each in people({"person": "console:me"})]
        assert any("downloads/" in each for each in line["remains"])
        [line] = [each async for each in people({"person": "pocket:ann"})]
        assert not any("downloads/" in each for each in line["remains"])
        assert SAVED not in await pocket.channel.ask("ann", "/forget zeppelin --purge")
