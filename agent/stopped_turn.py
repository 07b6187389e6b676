"""How a turn ends that /stop cut (docs/adr/0028-stopped-turns.md): what was seen stays, what ran is not denied."""

from __future__ import annotations

from agent.commands.talk import original_of
from agent.context import Place
from agent.draft import Draft
from agent.pool import Running
from agent.rooms import Rooms, to_chat
from gateway.events import OutboundKind, reference
from gateway.ports import EndState, Lease
from gateway.words import say


def open_draft(rooms: Rooms, lease: Lease, place: Place) -> Draft:
    """Return the turn's draft with what an earlier attempt of it stored and showed."""
    draft = Draft(lease, place.scope)
    if rooms.previews.is_watched(lease.key):
        draft.streamed = draft.last_words
    return draft


def doubts_of(draft: Draft, lease: Lease, language: str) -> list[str]:
    """Return the line that names the calls that may have happened without a result; none without such a call."""
    names = dict.fromkeys(f"`{call.name}`" for call in draft.doubtful_calls)
    if not names:
        return []
    return [say("delivery.outcome_unknown", language, what=", ".join(names), reference=reference(lease.turn))]


async def commit_stopped(rooms: Rooms, running: Running) -> None:
    """Commit a thinking turn as stopped; safe to repeat after a kill at any point."""
    lease = running.lease
    if running.draft is not None:  # first of all: from here on a kill loses neither the stop nor the text so far
        await _store_stop(rooms, lease, running.draft)
    conversation, place = await rooms.open(lease)
    draft = running.draft or open_draft(rooms, lease, place)
    if draft.stopped is None:  # stopped before anything was thought
        manner = rooms.manners.of(lease.key, lease.rows[0].message.guild)
        await rooms.context.assemble(draft, lease.rows, lease.notes, conversation, place, manner)
        await _store_stop(rooms, lease, draft)
    draft.drop_staged()
    text, ending = draft.ending
    # Completing the preview calls nobody, however late; without a text it is a line like any other.
    said = to_chat(
        lease,
        f"{text}\n\n{ending}" if text else ending,
        OutboundKind.ANSWER if text else OutboundKind.NOTICE,
        rings=False,
    )
    original = original_of(lease.rows[0].message.message_id)
    record = draft.record(EndState.STOPPED, rooms.now(), supersedes=original)
    await rooms.commit(running, conversation, record, said, draft)


async def _store_stop(rooms: Rooms, lease: Lease, draft: Draft) -> None:
    language = rooms.language(lease.rows[0])
    draft.streamed = rooms.redactor.redact_growing(draft.streamed)
    opening = draft.take_opening()
    if opening is not None:
        await rooms.journal.step(lease, opening)
    line = say("delivery.stopped_here" if draft.streamed else "commands.stopped_turn", language)
    dropped = [say("delivery.staged_dropped", language)] if draft.has_staged else []
    ending = " ".join([line, *doubts_of(draft, lease, language), *dropped])
    await rooms.journal.step(lease, draft.stop(ending))
