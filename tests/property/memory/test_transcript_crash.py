"""Wherever a file breaks off or is damaged, every whole record is still there."""

from __future__ import annotations

import tempfile
from itertools import accumulate
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agent.base import transcript_lines as build
from agent.memory import SessionManager
from agent.memory.storage.transcript_files import parse_transcript
from tests.fakes.memory import exchange, print_transcript, talk

RECORDS = [*talk(6), exchange(6, 12, tools=1, before=[build.mark(6)]), exchange(7, 16, said="ü€😀")]
PRINTED = print_transcript(RECORDS)
WHOLE = b"".join(PRINTED)
SIZES = list(accumulate(map(len, PRINTED)))[1:]


def _turns(data: bytes) -> list[str]:
    return [block.turn for block in parse_transcript(data).blocks]


@given(st.integers(0, len(WHOLE)))
def test_any_crash_point_keeps_every_complete_record(cut: int) -> None:
    """Cut the file anywhere: what was complete is read, and the rest is known to be torn."""
    parsed = parse_transcript(WHOLE[:cut])
    complete = sum(size <= cut for size in SIZES)
    assert [block.turn for block in parsed.blocks] == [record.turn for record in RECORDS[:complete]]
    whole = WHOLE[: max([len(PRINTED[0]), *SIZES[:complete]])]
    assert parsed.torn == WHOLE[len(whole) : cut] if cut >= len(PRINTED[0]) else parsed.torn == WHOLE[:cut]


@given(st.integers(0, 2_000))
def test_a_session_that_was_cut_goes_on(point: int) -> None:
    """Cut a saved session's file anywhere: the complete saves are loaded, and what is saved then is loaded behind."""
    with tempfile.TemporaryDirectory() as folder:
        manager = SessionManager(Path(folder))
        session = manager.get_or_create("telegram:42")
        for n in range(4):
            session.add_message("user", f"message {n} ü€😀")
            session.last_consolidated = n
            manager.save(session)
        [path] = (Path(folder) / "sessions").iterdir()
        whole = path.read_bytes()
        path.write_bytes(whole[: point % len(whole)])
        again = SessionManager(Path(folder))
        loaded = again.get_or_create("telegram:42")
        assert loaded.messages == session.messages[: len(loaded.messages)]
        assert loaded.last_consolidated == max(len(loaded.messages) - 1, 0)
        loaded.add_message("user", "more")
        again.save(loaded)
        assert SessionManager(Path(folder)).get_or_create("telegram:42").messages == loaded.messages


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_any_damage_costs_at_most_the_lines_it_touches(at: int, damage: bytes) -> None:
    """Turns whose lines were not touched are all there, in their order, and reading never raises."""
    at %= len(WHOLE)
    starts = [0, *SIZES[:-1]]
    # The turn after a damaged record may have lost the newline before its first line.
    untouched = [
        record.turn
        for record, start, end in zip(RECORDS, starts, SIZES, strict=True)
        if end <= at or start > at + len(damage)
    ]
    found = _turns(WHOLE[:at] + damage + WHOLE[at + len(damage) :])
    assert [turn for turn in found if turn in untouched] == untouched
