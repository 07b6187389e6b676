"""Find transcripts that have turns which the journal lost, before the journal assigns their indices again. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from agent.memory.scopes import transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain, archive_of
from agent.memory.storage.transcript_reader import read_tail
from gateway.ports import SessionRow

_RECORDS = 8  # read from the end of a transcript: enough to include the last one with messages
NEWEST_SESSIONS = 50  # checked at start: a journal loses the turns of recently used sessions


def describe_leads(home: Path, sessions: Iterable[SessionRow]) -> str:
    """Return a description of the turns that the journal lacks, "" if it lacks none."""
    leads = [*find_leads(home, sessions)]
    if not leads:
        return ""
    others = f" and {len(leads) - 1} more" if len(leads) > 1 else ""
    return f"lacks turns that are in the transcript of {leads[0].key}{others}"


def find_leads(home: Path, sessions: Iterable[SessionRow]) -> Iterator[SessionRow]:
    """Yield the sessions whose transcript has indices from the journal's next index on.

    A turn is durable in the journal before it is projected, so a crash alone cannot cause this.
    """
    disk = Disk()
    for row in sessions:
        chain = SegmentChain(disk, transcript_path(home, row.scope, str(row.key)), row.transcript)
        if chain.transcript == row.transcript and _end(chain) > row.next_index:
            yield row


def fit_session(home: Path, row: SessionRow, new_transcript: Callable[[], str]) -> SessionRow:
    """Return *row* corrected from its files, so that the next turn gets indices that no stored turn has."""
    path = transcript_path(home, row.scope, str(row.key))
    chain = SegmentChain(Disk(), path, row.transcript)
    if chain.transcript == row.transcript:
        return replace(row, next_index=max(row.next_index, _end(chain)))
    if archive_of(path, row.transcript) is None:
        return row
    # The journal lost the /new that archived the transcript.
    if chain.transcript:
        return replace(row, transcript=chain.transcript, next_index=_end(chain))
    return replace(row, transcript=new_transcript(), next_index=0)


def _end(chain: SegmentChain) -> int:
    return max((block.to_index for block in read_tail(chain, _RECORDS)), default=0)
