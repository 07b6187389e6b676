"""Which edits change what a line means, and which message of a person supports them."""

from __future__ import annotations

import pytest

from agent.memory.editing.edit_simulation import EditSimulation, with_evidence
from agent.memory.editing.staged_changes import ReviewReason
from agent.memory.editing.text_operations import AddLines, DocumentEdit, Operation, RemoveLines, ReplaceLines
from agent.memory.storage.messages import own_words

ALLERGY = ReplaceLines("- Allergic to penicillin", "- Not allergic to penicillin")


def review(old: str, new: str) -> ReviewReason | str:
    """Return why an edit of MEMORY.md waits that no message supports."""
    operation = ReplaceLines(old, new) if old and new else RemoveLines(old) if old else AddLines(new)
    simulation = EditSimulation({"MEMORY.md": f"{old or '- Allergic to nuts'}\n"})
    return simulation.do([DocumentEdit("MEMORY.md", operation)])[0].review


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- Likes tea", "- Does not like tea"),
        ("- Likes tea", "- Likes tea: false"),
        ("- Mag Tee", "- Mag keinen Tee"),
        ("- Aime le thé", "- N'aime pas le thé"),
        ("- Bebe té", "- Nunca bebe té"),
        ("- Does not smoke", "- Smokes"),
        ("", "- Not allergic to nuts"),
    ],
)
def test_a_denial_without_evidence_waits(old: str, new: str) -> None:
    """In four languages, as a replacement or an addition."""
    assert review(old, new) == ReviewReason.MEANING


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("- Lives in Leipzig", "- Lives in Dresden"),
        ("- Likes tea", "- Likes green tea"),
        ("- Does not smoke", "- Does not smoke any more"),
        ("- Salary: 4000", "- The salary is 4000"),
        ("- Uses Python", ""),
        ("", "- Allergic to penicillin"),
        ("", "- Does not like rain"),
    ],
)
def test_other_changes_need_none(old: str, new: str) -> None:
    """Corrections, rewordings, and new facts."""
    assert not review(old, new)


@pytest.mark.parametrize(
    ("operation", "said", "is_supported"),
    [
        (ALLERGY, "I am not allergic to penicillin after all", True),
        (ALLERGY, "Ich bin doch nicht gegen Penicillin allergisch", True),
        (ALLERGY, "I am allergic to penicillin", False),
        (ALLERGY, "I am not in Bern today", False),
        (ReplaceLines("- Salary: 4000", "- Salary: 4500"), "they raised it to 4500", True),
        (ReplaceLines("- Salary: 4000", "- Salary: 9000"), "let us talk about my salary", False),
        (RemoveLines("- Allergic to nuts"), "forget the nuts, please", True),
        (RemoveLines("- Allergic to nuts"), "what is for dinner?", False),
        (AddLines("- Has no allergies"), "no allergies that I know of", True),
    ],
)
def test_a_message_supports_what_it_says(operation: Operation, said: str, is_supported: bool) -> None:
    """It names what is denied or taken back, or the new words; another message does not support it."""
    edit = with_evidence(DocumentEdit("MEMORY.md", operation, 3), [(1, "hello"), (2, said)], [1, 2])
    assert (edit.source, edit.has_evidence) == ((2, True) if is_supported else (-1, False))


def test_the_named_message_comes_first() -> None:
    """If several support an edit, the model's choice counts."""
    said = [(n, "I moved to Dresden") for n in range(3)]
    edit = DocumentEdit("MEMORY.md", ReplaceLines("- Lives in Leipzig", "- Lives in Dresden"), 1)
    assert with_evidence(edit, said, range(3)).source == 1


def test_words_of_a_tainted_turn_are_no_evidence() -> None:
    """A page was in the prompt when Ann said so: what follows from it is asked about. The bot's words never count."""
    lines = [
        {"i": 0, "turn": "t1", "role": "user", "content": "I moved"},
        {"i": 1, "turn": "t1", "role": "assistant", "content": "I am not allergic"},
        {"i": 2, "turn": "t2", "role": "user", "content": "the page is right: I am not allergic to penicillin"},
        {"i": 3, "turn": "t2", "role": "tool", "content": "not allergic", "origin": "untrusted"},
        {"i": 4, "turn": "t2", "role": "assistant", "content": "noted", "tainted": True},
        {"i": 5, "turn": "t3", "role": "user", "content": "not allergic to penicillin", "origin": "untrusted"},
    ]
    assert own_words(lines) == [(0, "I moved")]
    assert not with_evidence(DocumentEdit("MEMORY.md", ALLERGY), own_words(lines), range(6)).has_evidence
