"""What came of a message is found by provenance, also where somebody's yes stood in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.memory.erasure.message_deletions import DeletionTrace, DerivedDataFinder
from tests.fakes.documents import FakeDocuments
from tests.fakes.histories import open_history

SCOPE, KEY, TURN = "people/telegram%3a1", "telegram:1", "taaaaaaaaaaaaaaaa"


@pytest.mark.parametrize("why", [f"remember:{TURN}.3.0", f"approved raaaaaaaaaaaaaaaa remember:{TURN}.3.0"])
async def test_what_it_had_remembered_is_found_without_and_behind_a_yes(tmp_path: Path, why: str) -> None:
    """The version names the turn; no word of the message stands in the line that came of it."""
    documents = FakeDocuments()
    assert await documents.write(SCOPE, "MEMORY.md", "- Owns an airship\n", was="", why=why)
    trace = DeletionTrace.of("s1", {"turn": TURN, "i": 2}, "please note what my zeppelin is")
    found = await DerivedDataFinder(documents, open_history()).find(SCOPE, KEY, "7", [trace])
    assert found == {"MEMORY.md": ["- Owns an airship"]}
