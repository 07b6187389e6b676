"""Transcripts that know more than the journal: a journal that lost its end would number turns a second time. Blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from agent.memory.scopes import transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain, archive_of
from agent.memory.storage.transcript_reader import read_tail
from gateway.ports import SessionRow

_RECORDS = 8  # from the end of a transcript; the last with messages is among them, or the journal is asked too early


NEWEST_SESSIONS = 50  # that a start looks at: what a journal lost is of those that were used last


def describe_leads(home: Path, sessions: Iterable[SessionRow]) -> str:
    """Return what is wrong with a journal that transcripts of these sessions are ahead of; or ""."""
    leads = [*find_leads(home, sessions)]
    if not leads:
        return ""
    others = f" and {len(leads) - 1} more" if len(leads) > 1 else ""
    return f"lacks turns that stand in the transcript of {leads[0].key}{others}"


def find_leads(home: Path, sessions: Iterable[SessionRow]) -> Iterator[SessionRow]:
    """Yield the sessions whose transcript ends behind the journal's next index.

    A turn is durable in the journal before it is projected, so that no crash makes such a session.
    """
    disk = Disk()
    for row in sessions:
        chain = SegmentChain(disk, transcript_path(home, row.scope, str(row.key)), row.transcript)
        if chain.transcript == row.transcript and _end(chain) > row.next_index:
            yield row


def fit_session(home: Path, row: SessionRow, new_transcript: Callable[[], str]) -> SessionRow:
    """Return *row* as its files have it, so that its next turn gets indices that no stored turn has."""
    path = transcript_path(home, row.scope, str(row.key))
    chain = SegmentChain(Disk(), path, row.transcript)
    if chain.transcript == row.transcript:
        return replace(row, next_index=max(row.next_index, _end(chain)))
    if archive_of(path, row.transcript) is None:
        return row
    # It was ended by a /new that the journal does not know.
    if chain.transcript:
        return replace(row, transcript=chain.transcript, next_index=_end(chain))
    return replace(row, transcript=new_transcript(), next_index=0)


def _end(chain: SegmentChain) -> int:
    return max((block.to_index for block in read_tail(chain, _RECORDS)), default=0)
