"""Memory that can be argued with, in the chat itself: what is kept, why, since when, and taking it back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agent.memory.history.folder_store import document_path
from gateway.ports.memory import HistoryEntry, NoteChange
from tests.e2e.agent.test_consolidation import SummaryModel
from tests.fakes.documents import edit_by_hand, stored_text
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import change, memory

SCOPE = "people/pocket%3aann"


async def say(parlour: InProcessGateway, *texts: str, **facts: Any) -> Sequence[str]:
    """Say each text in Ann's chat and return the answers."""
    return [await parlour.channel.ask("ann", text, **facts) for text in texts]


async def test_a_fact_can_be_asked_for_its_source_and_taken_back() -> None:
    """From /remember to the version, the message behind it, and out again; what came later stays."""
    async with gateway() as parlour:
        empty, _, _, shown, why = await say(
            parlour, "/memory", "/remember I like green tea", "/remember my dog is Bello", "/memory", "/memory why TEA"
        )
        assert "anything here yet" in empty
        assert "- I like green tea\n- my dog is Bello" in shown
        assert "> - I like green tea" in why
        assert "saved on request" in why
        assert "/remember I like green tea" in why
        sha = change(why)
        diff, log, undone, after = await say(
            parlour, f"/memory diff {sha}", "/memory log", f"/memory undo {sha}", "/memory"
        )
        assert "+- I like green tea" in diff
        assert log.count("saved on request") == 2
        assert undone.startswith("Undone")
        assert "green tea" not in after
        assert "- my dog is Bello" in after
        [again] = await say(parlour, f"/memory undo {sha}")
        assert "cannot be undone" in again


async def test_undoing_one_of_three_changes_keeps_the_other_two() -> None:
    """Issue 4, "To show" 7: the one in the middle goes; what came before it and what came after it stay."""
    async with gateway() as parlour:
        await say(parlour, "/remember I like green tea", "/remember my dog is Bello", "/remember I work with glass")
        [why] = await say(parlour, "/memory why Bello")
        undone, shown, log = await say(parlour, f"/memory undo {change(why)}", "/memory", "/memory log")
        assert undone.startswith("Undone")
        assert "- I like green tea\n- I work with glass" in shown
        assert "Bello" not in shown
        assert len(log.splitlines()) == 4


async def test_what_is_typed_wrong_is_answered_with_what_to_type() -> None:
    """Each mistake has its own sentence, and nothing changes."""
    async with gateway() as parlour:
        answers = await say(
            parlour,
            "/remember",
            f"/remember {'x' * 2000}",
            "/memory undo",
            "/memory undo zzzzzzzz",
            "/memory why",
            "/memory why cheese",
            "/memory diff",
            "/memory log",
            "/memory frobnicate",
        )
        for answer, words in zip(
            answers,
            (
                "/remember I like tea",
                "up to 1,000",
                "/memory log",
                "Unknown change: zzzzzzzz",
                "/memory why tea",
                "contains these words",
                "has not been changed",
                "has not been changed",
                "/memory undo <change>",
            ),
            strict=True,
        ):
            assert words in answer
        assert not stored_text(parlour.home, SCOPE, "MEMORY.md")


async def test_a_persons_own_edit_shows_as_theirs() -> None:
    """Saved in an editor while the gateway runs: it is in the log as an edit by hand, and can be undone as well."""
    async with gateway() as parlour:
        await say(parlour, "/remember I like tea")
        await say(parlour, "hello")
        await parlour.settle_documents()
        edit_by_hand(document_path(parlour.home, SCOPE, "MEMORY.md"), "- I like tea\n- I like cake\n")
        [why] = await say(parlour, "/memory why cake")
        assert "edited by hand" in why
        undone, shown = await say(parlour, f"/memory undo {change(why)}", "/memory")
        assert undone.startswith("Undone")
        assert "cake" not in shown


async def test_in_a_shared_chat_undoing_is_for_admins_and_answers_are_private() -> None:
    """Everybody may look and have something kept; what is printed about memory is seen by its sender alone."""
    policy = OPEN
    async with gateway(policy=policy) as parlour:
        ask = parlour.channel.ask
        await ask("room", "/remember the office is in Bonn", group=True)
        why = await ask("room", "/memory why bonn", group=True, sender="bob")
        assert parlour.channel.posts["room"][-1].visible_to == "bob"
        refused = await ask("room", f"/memory undo {change(why)}", group=True, sender="bob")
        assert refused == "Only an admin of this chat or an owner of this bot can use /memory undo here."
        done = await ask("room", f"/memory undo {change(why)}", group=True, sender="eve", is_admin=True)
        assert done.startswith("Undone")
        assert "anything here yet" in await ask("ann", "/memory")


CAUSES = {
    "edited by hand": "edited by hand",
    "remember:t1.0.0": "saved on request",
    "undo 01234567": "change `01234567` was undone",
    "consolidation eabc": "earlier messages were summarized",
    "dream: 3-9 eabc ebcd": "recent conversations were reviewed",
    "dream restore 01234567": "restored to before Dream's change `01234567`",
    "approved dabc dream: 3-9 eabc": "a pending change was approved",
    "imported from nanobot": "imported from nanobot",
    "forget": "words were erased on request",
    "something of a later version": "changed",
}


async def test_every_kind_of_change_is_said_in_words() -> None:
    """No cause is shown as it is stored: not its ids, not its cursors."""
    async with gateway() as parlour:
        documents, was = parlour.app.store.documents, ""
        for n, why in enumerate(CAUSES):
            written = await documents.write(SCOPE, "MEMORY.md", f"- fact {n}\n", was=was, why=why)
            assert written is not None
            was = written.rev
        [log] = await say(parlour, "/memory log")
        assert [line.partition(": ")[2].partition(" · ")[0] for line in log.splitlines()] == list(CAUSES.values())[::-1]


async def test_the_log_shows_the_first_changed_line_of_each_change() -> None:
    """What was added, and what a correction replaced; one line for each change."""
    async with gateway() as parlour:
        await say(parlour, "/remember I live in Leipzig", "/remember I like green tea", "/memory")
        await parlour.settle_documents()
        path = document_path(parlour.home, SCOPE, "MEMORY.md")
        edit_by_hand(path, path.read_text().replace("Leipzig", "Dresden since May"))
        [log] = await say(parlour, "/memory log")
        newest, tea, leipzig = log.splitlines()
        assert newest.endswith("· − I live in Leipzig · + I live in Dresden since May")
        assert tea.endswith("· + I like green tea")
        assert leipzig.endswith("· + I live in Leipzig")


async def test_notes_and_summaries_are_listed_in_pages() -> None:
    """The newest first, a message's length each; another scope's are not there, and no other file can be named."""
    async with gateway() as parlour:
        empty = await say(parlour, "/memory notes", "/memory history", "/remember x")
        assert empty[:2] == ["No notes have been written here yet.", "No conversation has been summarized here yet."]
        memory = document_path(parlour.home, SCOPE, "MEMORY.md").parent
        history = parlour.app.store.history
        for n in range(30):
            content = f"[2026-11-22 10:00] Talk number {n} {'about glass ' * 20}"
            await history.append(SCOPE, HistoryEntry(timestamp="2026-11-22 10:00", content=content, entry=f"e{n}"))
        texts = {"2026-11-21.md": "## Flush at 10:00\n\n- tea is green\n"}
        texts["2026-11-22-tea.md"] = "# Session Memory\n\nOolong.\n"
        notes = {name: NoteChange(was=None, body=text.encode()) for name, text in texts.items()}
        assert await history.write(SCOPE, notes=notes)
        memory.mkdir(parents=True, exist_ok=True)
        (memory / "secret.md").write_text("no note")
        listed, note, missing, outside, first, second, last = await say(
            parlour,
            "/memory notes",
            "/memory notes 2026-11-22-tea",
            "/memory notes 2026-11-20",
            "/memory notes ../memory/secret",
            "/memory history",
            "/memory history 2",
            "/memory history 99",
        )
        assert [line for line in listed.splitlines() if line.startswith("- ")] == [
            "- `2026-11-22-tea`",
            "- `2026-11-21`",
        ]
        assert "Oolong." in note
        assert missing.startswith("No note here is called `2026-11-20`")
        assert outside.startswith("No note")
        assert first.startswith("Summaries of earlier conversations, the newest first (page 1 of 5):")
        assert "[2026-11-22 10:00] Talk number 29 about glass" in first
        assert "`/memory history 2` shows older ones." in first
        assert "Talk number 0 " not in second
        assert "Talk number 0 " in last
        assert max(map(len, (first, second, last))) < 2_000
        assert "No conversation" in await parlour.channel.ask("bob", "/memory history", sender="bob")
        assert "No notes" in await parlour.channel.ask("bob", "/memory notes", sender="bob")


async def test_one_line_is_dropped_and_nothing_else() -> None:
    """The messages keep the words, the answer shows the line and its change, and an undo brings the line back."""
    async with gateway(model=SummaryModel()) as parlour:
        await say(parlour, "/remember I like green tea", "/remember my dog is Bello", "is green tea healthy?")
        dropped, shown = await say(parlour, "/memory drop GREEN  tea", "/memory")
        assert dropped.startswith("Removed from memory: `- I like green tea`.")
        assert "`/forget <words>` erases them everywhere" in dropped
        assert memory(parlour, SCOPE) == "- my dog is Bello\n"
        assert "green tea" not in shown
        await parlour.app.session_files.flush()
        assert "is green tea healthy?" in (parlour.home / SCOPE / "sessions/pocket%3aann.jsonl").read_text()
        undo = re.findall(r"/memory undo [0-9a-f]+", dropped)
        [undone] = await say(parlour, *undo)
        assert undone.startswith("Undone")
        assert "- I like green tea\n" in memory(parlour, SCOPE)


async def test_of_several_lines_one_is_chosen() -> None:
    """By a button, or by the whole line; the same line under another heading, and in USER.md, is another one."""
    document = "# Home\n\n- likes tea\n- tea at five\n\n## Work\n\n- likes tea\n"
    async with gateway(model=SummaryModel()) as parlour:
        await say(parlour, "hello")
        write_by_hand(parlour, "MEMORY.md", document)
        write_by_hand(parlour, "USER.md", "- Likes tea a lot\n")
        [question] = await say(parlour, "/memory drop tea")
        assert question.startswith("Several remembered lines contain these words.")
        commands = re.findall(r"/memory remove (=[a-z2-7]+)", question)
        assert len(set(commands)) == 4
        assert memory(parlour, SCOPE) == document
        [exact] = await say(parlour, "/memory drop tea AT five")
        assert "`- tea at five`" in exact
        [question] = await say(parlour, "/memory drop likes tea")
        first, second = re.findall(r"/memory remove (=[a-z2-7]+)", question)
        [dropped] = await say(parlour, f"/memory remove {second}")
        assert "`- likes tea`" in dropped
        assert memory(parlour, SCOPE) == "# Home\n\n- likes tea\n\n## Work\n"
        [gone] = await say(parlour, f"/memory remove {second}")
        assert gone.startswith("Nothing I remember contains")
        assert first not in gone
        assert stored_text(parlour.home, SCOPE, "USER.md") == "- Likes tea a lot\n"


async def test_many_lines_are_listed_in_part() -> None:
    """Five have a button; more words are asked for."""
    async with gateway() as parlour:
        await say(parlour, "hello")
        write_by_hand(parlour, "MEMORY.md", "".join(f"- tea number {n}\n" for n in range(9)))
        [question] = await say(parlour, "/memory drop tea")
        assert len(set(re.findall(r"/memory remove (=[a-z2-7]+)", question))) == 5
        assert "and 4 more" in question


async def test_a_member_drops_their_own_lines_only() -> None:
    """In a group another person's line stays, and an admin removes any."""
    room = {"group": True}
    async with gateway(policy=OPEN) as parlour:
        ask = parlour.channel.ask
        await ask("room", "/remember ann likes tea", sender="ann", **room)
        refused = await ask("room", "/memory drop tea", sender="bob", **room)
        assert "another person added it" in refused
        assert memory(parlour, "chats/pocket%3aroom") == "- ann likes tea\n"
        await ask("room", "/memory drop tea", sender="eve", is_admin=True, **room)
        assert memory(parlour, "chats/pocket%3aroom") == ""


def write_by_hand(parlour: InProcessGateway, name: str, text: str) -> None:
    """Save a document as a person does, a while ago."""
    edit_by_hand(document_path(parlour.home, SCOPE, name), text)
