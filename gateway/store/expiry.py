"""Retention: texts are blanked after a week, keys removed after a month, dead letters after a quarter."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

from gateway.ports.store import BLANK_AFTER
from gateway.store import access, inbox, outbox
from gateway.store.cap_counts import prune_cap_counts
from gateway.store.database import SET_META, Database
from gateway.store.outbox import KEEP
from gateway.store.row_codec import moment
from gateway.store.usage import fold, prune_cap_notices

KEEP_DEAD = timedelta(days=90)

_MARK = "SELECT value FROM meta WHERE name = 'blanked_until'"


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def prune(database: Database, now: int, blank_after: timedelta = BLANK_AFTER, *, zone: str = "UTC") -> int:
    """Blank and remove what is past its time; a texts' week is looked at once, from where the last look ended.

    Of usage a day's sums of *zone* stay for good.
    """
    found = database.execute(_MARK).fetchone()
    since, until = int(found[0]) if found is not None else 0, now - _micros(blank_after)
    keep = now - _micros(KEEP)
    count = _prune_inbox(database, since, until, keep)
    count += outbox.purge(database, (since, until), keep)
    count += fold(database, moment(keep), ZoneInfo(zone)) + prune_cap_notices(database, now)
    count += prune_cap_counts(database, now)
    count += database.execute(
        "DELETE FROM record WHERE at < ? AND seq NOT IN (SELECT seq FROM body) AND seq < (SELECT max(seq) FROM record)",
        (keep,),
    ).rowcount
    count += database.execute("DELETE FROM dead WHERE at < ?", (now - _micros(KEEP_DEAD),)).rowcount
    count += access.prune(database, now)
    database.execute(SET_META, ("blanked_until", str(max(since, until))))
    return count


def _prune_inbox(database: Database, since: int, until: int, keep: int) -> int:
    # Notes that no later turn fetched expire.
    database.execute(
        "UPDATE inbox SET state = 'stopped', ended_at = accepted_at "
        "WHERE ended_at IS NULL AND state = 'noted' AND turn = '' AND accepted_at < ?",
        (keep,),
    )
    blanked = inbox.blank_ended(database, "ended_at >= ? AND ended_at < ?", since, until)
    gone = database.execute(
        "DELETE FROM inbox WHERE ended_at IS NOT NULL AND ended_at < ? "
        # The highest number stays, so that no number is given twice.
        "AND seq < (SELECT max(seq) FROM inbox) RETURNING seq",
        (keep,),
    ).fetchall()
    database.executemany("DELETE FROM dedupe WHERE seq = ?", gone)
    return blanked + len(gone)
