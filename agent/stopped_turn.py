"""How a turn ends that /stop cut (docs/adr/0028-stopped-turns.md): what was seen stays, what ran is not denied."""

from __future__ import annotations

from agent.commands.session import retried_turn
from agent.prompt_assembly import TurnScope
from agent.turn_draft import TurnDraft
from agent.turn_services import TurnServices, build_reply
from agent.worker_pool import RunningTurn
from gateway.events import OutboundKind, short_turn_id
from gateway.i18n import translate
from gateway.ports import MessageOutcome, TurnLease


def open_draft(rooms: TurnServices, lease: TurnLease, place: TurnScope) -> TurnDraft:
    """Return the turn's draft with what an earlier attempt of it stored and showed."""
    draft = TurnDraft(lease, place.scope)
    if rooms.previews.is_watched(lease.key):
        draft.streamed = draft.last_words
    return draft


def doubts_of(draft: TurnDraft, lease: TurnLease, language: str) -> list[str]:
    """Return the line that names the calls that may have happened without a result; none without such a call."""
    names = dict.fromkeys(f"`{call.name}`" for call in draft.doubtful_calls)
    if not names:
        return []
    return [translate("delivery.outcome_unknown", language, what=", ".join(names), reference=short_turn_id(lease.turn))]


async def commit_stopped(rooms: TurnServices, running: RunningTurn) -> None:
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
    said = build_reply(
        lease,
        f"{text}\n\n{ending}" if text else ending,
        OutboundKind.ANSWER if text else OutboundKind.NOTICE,
        rings=False,
    )
    original = retried_turn(lease.rows[0].message.message_id)
    record = draft.record(MessageOutcome.STOPPED, rooms.now(), supersedes=original)
    await rooms.commit(running, conversation, record, said, draft)


async def _store_stop(rooms: TurnServices, lease: TurnLease, draft: TurnDraft) -> None:
    language = rooms.language(lease.rows[0])
    draft.streamed = rooms.redactor.redact_growing(draft.streamed)
    opening = draft.take_opening()
    if opening is not None:
        await rooms.journal.step(lease, opening)
    line = translate("delivery.stopped_here" if draft.streamed else "commands.stopped_turn", language)
    dropped = [translate("delivery.staged_dropped", language)] if draft.has_staged else []
    ending = " ".join([line, *doubts_of(draft, lease, language), *dropped])
    await rooms.journal.step(lease, draft.stop(ending))
