"""What was brought along from another bot, in the gateway: the chat goes on, and memory can be argued with."""

from __future__ import annotations

from pathlib import Path

from gateway.commands.imports import run_import
from tests.fakes import other_bots
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.recording_model import RecordingModel
from tests.fakes.staged_changes import erase


async def test_archives_and_history_of_theirs_are_found(tmp_path: Path) -> None:
    """What nobody mapped is searched like our own: messages, summaries, notes; in nobody else's scope."""
    theirs = other_bots.nanobot(tmp_path / "theirs")
    async with gateway(model=RecordingModel()) as parlour:
        await run_import(parlour.app, "nanobot", theirs, person="pocket:ann", mapped={}, is_dry=False)
        for words, said in (
            ("boat called Nessie", "My boat is Nessie"),
            ("talked about boats", "Talked about boats."),
            ("REST", "REST it is."),
        ):
            hits = await parlour.app.recall.search("people/pocket%3aann", words)
            assert any(said in hit.text for hit in hits), words
        assert not await parlour.app.recall.search("people/pocket%3abob", "Nessie")


async def test_a_chat_goes_on_from_a_conversation_of_theirs(tmp_path: Path) -> None:
    """The model reads what no summary of theirs holds, then what is said here; memory and voice are in its prompt."""
    theirs, model = other_bots.nanobot(tmp_path / "theirs"), RecordingModel()
    async with gateway(model=model) as parlour:
        mapped = {"telegram:42": "pocket:ann"}
        await run_import(parlour.app, "nanobot", theirs, person="pocket:ann", mapped=mapped, is_dry=False)
        await parlour.channel.ask("ann", "And now?")
        system, *said = model.prompts[-1]
        assert [str(each["content"])[-18:] for each in said] == [
            "What is it called?",
            "",
            "Nessie",
            "Nessie.",
            said[-1]["content"][-18:],
        ]
        assert str(said[-1]["content"]).endswith("And now?")
        assert "I am brief." in system["content"]
        assert "- Favorite color: blue" in system["content"]
        assert "imported from nanobot" in await parlour.channel.ask("ann", "/memory why color")
        assert "Erased: " in await erase(parlour.channel.ask, "ann", "/forget Nessie")
        await parlour.channel.ask("ann", "Still there?")
        assert "Nessie" not in str(model.prompts[-1])
    async with gateway(home=parlour.home.parent / "other", model=model) as other:
        assert "remember anything here yet" in await other.channel.ask("ann", "/memory")
