"""Seed 004's three examples played through the real store, one message after the other.

What the document prints follows no single rule: each test shows the numbers that ours gives, and that
every message is in a summary or in the context, which the document's trimming does not promise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from agent.memory import MemoryStore, Session, SessionManager
from agent.memory.storage.messages import KeepPolicy, is_due
from tests.fakes.consolidator import ScriptedProvider, saving


@dataclass
class ConversationCourse:
    """A conversation as it goes on: when it was consolidated, what of it, and what is in the context then."""

    workspace: Path
    window: int
    provider: ScriptedProvider = field(default_factory=lambda: ScriptedProvider(saving("- a fact")))
    rounds: list[tuple[int, str, str]] = field(default_factory=list)

    async def play(self, upto: int) -> Session:
        """Say message after message, consolidating where it is due."""
        sessions, store = SessionManager(self.workspace), MemoryStore(self.workspace, keep=KeepPolicy.RECENT)
        session = sessions.get_or_create("telegram:1")
        for number in range(1, upto + 1):
            session.add_message("user", f"message {number}")
            if is_due(len(session.messages), session.last_consolidated, self.window, KeepPolicy.RECENT):
                assert await store.consolidate(session, self.provider, "m", memory_window=self.window)
                summarised = [int(each) for each in re.findall(r"USER: message (\d+)", self.provider.prompt)]
                kept = [int(str(each["content"]).split()[1]) for each in session.messages[session.last_consolidated :]]
                assert [*summarised, *kept] == list(range(summarised[0], number + 1))
                self.rounds.append((number, f"{summarised[0]}-{summarised[-1]}", f"{kept[0]}-{kept[-1]}"))
            sessions.save(session)
        return session


async def test_example_1_message_by_message(tmp_path: Path) -> None:
    """[004] Example 1: printed 51 (keep 41-51, summarise 1-40), then 102; here 50, 90 and 130, keeping ten each."""
    course = ConversationCourse(tmp_path, 50)
    await course.play(131)
    assert course.rounds == [(50, "1-40", "41-50"), (90, "41-80", "81-90"), (130, "81-120", "121-130")]
    history = (tmp_path / "memory" / "HISTORY.md").read_text()
    assert history.count("Created FastAPI server") == 3
    assert (tmp_path / "memory" / "MEMORY.md").read_text() == "- a fact\n"


async def test_example_2_message_by_message(tmp_path: Path) -> None:
    """[004] Example 2: at 11 the context is 2-11, at 12 it is 3-12; no call, no MEMORY.md, no HISTORY.md."""
    course = ConversationCourse(tmp_path, 0)
    for upto, first in ((10, 1), (11, 2), (12, 3)):
        session = await ConversationCourse(tmp_path / str(upto), 0).play(upto)
        context = [str(each["content"]) for each in session.get_history(10)]
        assert context == [f"message {n}" for n in range(first, upto + 1)]
    await course.play(60)
    assert (course.rounds, course.provider.asked) == ([], [])
    assert not (tmp_path / "memory" / "MEMORY.md").exists()
    assert not (tmp_path / "memory" / "HISTORY.md").exists()
    assert len(SessionManager(tmp_path).get_or_create("telegram:1").messages) == 60


async def test_example_3_message_by_message(tmp_path: Path) -> None:
    """[004] Example 3: printed 21, 41, 61 (keep 11-21 …); here 20 and then every ten, each keeping ten."""
    course = ConversationCourse(tmp_path, 20)
    await course.play(45)
    assert course.rounds == [(20, "1-10", "11-20"), (30, "11-20", "21-30"), (40, "21-30", "31-40")]
