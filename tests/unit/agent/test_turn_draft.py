"""A turn in the making: steps adopted as stored, indices, call ids, and what its record holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.base import transcript_lines as build
from agent.base.transcript_lines import estimate_messages
from agent.llm.chat_model import ChatReply, TokenUsage, ToolCall
from agent.turns.turn_draft import StagedEffects, TurnDraft
from gateway.events import Attachment
from gateway.ports.journal import InboxRow, MessageOutcome, SessionRow, TurnLease, TurnStep
from tests.fakes.turns import ANN, START, said

CHART = Attachment(
    kind="document", name="chart.csv", size=3, media_type="text/csv", blob=f"people/ann/{'a' * 64}", caption=""
)


def lease(*seqs: int, steps: Sequence[TurnStep] = (), notes: Sequence[InboxRow] = ()) -> TurnLease:
    """A lease of rows by number."""
    rows = tuple(InboxRow(seq=seq, message=said(f"m{seq}", id=str(seq)), accepted_at=START) for seq in seqs)
    session = SessionRow(key=ANN, transcript="x" * 16, next_index=7, created_at=START)
    return TurnLease(
        key=ANN, turn="tabc", epoch=1, rows=rows, session=session, steps=tuple(steps), notes=tuple(notes), more=0
    )


def reply(*calls: ToolCall, text: str = "") -> ChatReply:
    """A model's message."""
    return ChatReply(text=text, tool_calls=calls, model="m", tokens=TokenUsage(), cost=None)


def open_draft(at: TurnLease) -> TurnDraft:
    """A draft whose rows are told."""
    draft = TurnDraft(at)
    lines = [draft.message("user", row.message.text, START) for row in at.rows]
    draft.open(lines, {"d": "text"}, at.rows)
    return draft


def test_a_resumed_draft_is_the_draft_that_was() -> None:
    """Steps stored by one attempt give the next the same messages, calls, blobs and record."""
    first = open_draft(lease(1, 2))
    (opening,) = first.take_opening()
    asked = first.model(reply(ToolCall("a", "boil", "{}"), ToolCall("b", "ring", "{}"), text="one moment"))
    intent = first.intent(first.open_calls[0])
    result = first.result(first.open_calls[0], "boiled", StagedEffects(remember=["it boils"], send=[CHART]))
    later = InboxRow(seq=3, message=said("more", id="3"), accepted_at=START)
    steer = first.steer([later], [first.message("user", "more", START)])
    again = TurnDraft(lease(1, 2, 3, steps=[opening, asked, intent, result, steer]))
    assert again.is_resumed
    assert again.messages == first.messages
    assert again.open_calls == first.open_calls == [ToolCall("b", "ring", "{}")]
    assert again.finished_calls == [ToolCall("a", "boil", "{}")]
    assert again.intents == {"a"}
    assert again.unseen_rows == []
    assert again.take_opening() == ()
    assert again.jobs("ann", START, "people/ann") == first.jobs("ann", START, "people/ann")
    assert [job.payload["fact"] for job in again.jobs("ann", START, "people/ann")] == ["it boils"]
    assert again.attachments == first.attachments == (CHART,)
    done = again.record(MessageOutcome.ANSWERED, START, scope="people/ann")
    assert done == first.record(MessageOutcome.ANSWERED, START, scope="people/ann")
    assert done.inbox == (1, 2, 3)
    assert (done.from_index, done.to_index) == (7, 12)
    assert done.blobs == {"d": "text"}


def test_pictures_of_results_come_behind_all_of_them() -> None:
    """Result by result, and read again as a resumed turn: the same messages, and their weight."""
    draft = open_draft(lease(1))
    (opening,) = draft.take_opening()
    steps = [opening, draft.model(reply(ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")))]
    seen = {"blob": CHART.blob, "media_type": "image/png"}
    shown = StagedEffects(pictures=[{"kind": "image", "name": "picture.png", "seen": seen}])
    steps += [draft.result(call, "seen", shown if call.id == "a" else None) for call in draft.open_calls]
    assert [each["role"] for each in draft.messages] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert draft.messages[-1]["content"][1]["type"] == "image_url"
    assert draft.pictured_calls == {"a"}
    again = TurnDraft(lease(1, steps=steps))
    assert again.messages == draft.messages
    assert again.weight == draft.weight == estimate_messages(draft.messages)


def test_keys_of_a_fact_are_in_its_job() -> None:
    """A fact without keys is stored as the text that earlier versions stored."""
    effects = StagedEffects()
    effects.keep("it boils")
    effects.keep("it is hot", "tea, breakfast")
    assert effects.remember[0] == "it boils"
    draft = open_draft(lease(1))
    draft.model(reply(ToolCall("a", "boil", "{}")))
    draft.result(draft.open_calls[0], "boiled", effects)
    payloads = [job.payload for job in draft.jobs("ann", START, "people/ann")]
    assert [(each["fact"], each.get("keys")) for each in payloads] == [
        ("it boils", None),
        ("it is hot", "tea, breakfast"),
    ]


def test_rows_that_were_stamped_but_never_told_are_known() -> None:
    """A row of the lease that is in no step has still to be told to the model."""
    first = open_draft(lease(1))
    (opening,) = first.take_opening()
    again = TurnDraft(lease(1, 2, steps=[opening]))
    assert [row.seq for row in again.unseen_rows] == [2]
    assert open_draft(lease(1, 2)).unseen_rows == []


def test_repeated_and_missing_call_ids_become_unique() -> None:
    """Two calls never share an id in one turn, within a message or across two; good ids are kept."""
    draft = open_draft(lease(1))
    draft.model(reply(ToolCall("a", "x", "{}"), ToolCall("a", "x", "{}"), ToolCall("", "x", "{}")))
    draft.model(reply(ToolCall("a", "x", "{}")))
    ids = [call.id for call in draft.open_calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 4
    assert "" not in ids


def test_a_record_ends_with_its_end_and_names_every_row() -> None:
    """Notes and rows are ended with the turn; the `end` line says the same as the record."""
    note = InboxRow(seq=9, message=said("edited", id="1", revision="2"), accepted_at=START)
    draft = open_draft(replace(lease(1), notes=(note,)))
    draft.add(draft.message("assistant", "hello", START))
    record = draft.record(MessageOutcome.ANSWERED, START, scope="people/ann", failure="busy", supersedes="told")
    end = record.lines[-1]
    assert build.kind_of(end) == "end"
    assert (end["from"], end["to"], end["inbox"], end["outcome"]) == (7, 9, ["1", "9"], "answered")
    assert (record.inbox, record.failure, record.supersedes) == ((1, 9), "busy", "told")
