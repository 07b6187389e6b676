"""The explorer: a short run comes to rest, equal seeds give equal steps, and each of its checks can fail."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path

from tests.faults.explorer.explorer_run import PEOPLE, ExplorerPlan, ExplorerReport, ExplorerRun
from tests.faults.explorer.places import look_at_home
from tests.faults.explorer.steps import draw_steps
from tests.faults.explorer.truth import Erasure, LinkedPair, LinkState, Presence, SentMessage, Truth
from tests.faults.process_pool import ForkServer


async def explore(folder: Path, zygote: ForkServer, trace: io.StringIO, **plan: object) -> ExplorerReport:
    """Play a small plan on SQLite."""
    small = ExplorerPlan(seed=1, gateways=1, steps=30, rounds=1, **plan)  # type: ignore[arg-type]
    return await ExplorerRun(small, folder, zygote, None, trace).play()


async def test_a_planted_word_is_all_that_a_short_run_finds(tmp_path: Path, zygote: ForkServer) -> None:
    """People and faults for a few seconds; then Bob's word is put into a file of Cat's, and found there alone."""
    trace = io.StringIO()
    report = await explore(tmp_path, zygote, trace, plants=True)
    found = {line.partition(":")[0] for line in report.wrong}
    assert found == {"crossing"}, (report.wrong, trace.getvalue())
    assert all("cat1" in line and "bob1" in line for line in report.wrong), report.wrong
    assert (report.counts["faults"] > 0, report.counts["answers"] > 20, report.counts["words seen"] > 50) == (True,) * 3


def test_equal_seeds_give_equal_steps() -> None:
    """A run can be repeated by its seed; another seed is another run."""
    once, again, other = (
        list(islice(draw_steps(seed, PEOPLE, ("-team",), ("g0", "g1"), has_database=True), 500)) for seed in (7, 7, 8)
    )
    assert once == again
    assert once != other
    assert {"purge", "undo", "link", "hand", "kill", "stall"} <= {each.action for each in once}


def kinds(truth: Truth) -> list[str]:
    """Return the kinds of what is wrong."""
    return [line.partition(":")[0] for line in truth.wrong]


def said(truth: Truth, number: str, chat: str = "ann1") -> SentMessage:
    """Have a message be sent and accepted."""
    message = truth.send(number, chat, f"m{number}q")
    truth.accept(message)
    return message


def a_truth() -> Truth:
    """Return a model of Ann's two accounts."""
    return Truth([LinkedPair(frozenset({"ann1", "ann2"}))])


def test_answers_that_are_lost_doubled_or_out_of_order_are_found() -> None:
    """A message without an answer, a part twice without a mark, two turns for a message, and an order are wrong."""
    truth = a_truth()
    said(truth, "1")
    truth.check_answers()
    assert kinds(truth) == ["lost"]
    for number, parts in {"2": ["ta.1.1", "ta.1.1"], "3": ["tb.1.1", "tc.1.1"]}.items():
        message = said(truth, number)
        for part in parts:
            truth.show(number, part, is_marked=False)
            truth.answer("ann1", message.token, part, is_marked=False)
    assert kinds(truth) == ["lost", "doubled", "doubled"]
    truth.check_order("ann1", ["m2q", "m3q"])
    truth.check_order("ann1", ["m3q", "m2q"])
    assert kinds(truth)[3:] == ["order"]


def test_a_marked_repeat_and_a_stopped_message_are_right() -> None:
    """A part may be there again with a mark, and nothing has to answer what was waiting at a /stop."""
    truth = a_truth()
    said(truth, "1")
    truth.show("1", "ta.1.1", is_marked=False)
    truth.show("1", "ta.1.1", is_marked=True)
    said(truth, "2")
    truth.stop("ann1")
    truth.check_answers()
    assert truth.wrong == []


def test_words_of_others_are_found_until_their_accounts_are_linked_and_after() -> None:
    """Linked accounts share their words; before, and for messages after the unlink, a word is a crossing."""
    truth = a_truth()
    word, pair = truth.new_word("ann2"), truth.pairs[0]
    truth.look("prompt", "ann1", word, truth.tick())
    assert kinds(truth) == ["crossing"]
    pair.state = LinkState.LINKED
    truth.look("another prompt", "ann1", word, truth.tick())
    before = truth.tick()
    pair.state, pair.changed_at = LinkState.APART, truth.tick()
    truth.look("a prompt for an older message", "ann1", word, before)
    assert kinds(truth) == ["crossing"]
    truth.look("a newer prompt", "ann1", word, truth.tick())
    assert kinds(truth) == ["crossing"] * 2


def test_erased_words_are_found_in_prompts_and_in_bytes(tmp_path: Path) -> None:
    """A purged word in a prompt for a later message, or anywhere in a file, is wrong."""
    truth = a_truth()
    word = truth.new_word("ann1")
    earlier = truth.tick()
    truth.erase(word, Erasure.PURGED)
    truth.look("prompt", "ann1", word, earlier)
    assert truth.wrong == []
    truth.look("prompt", "ann1", word, truth.tick())
    (tmp_path / "people/wire%3aann1").mkdir(parents=True)
    (tmp_path / "people/wire%3aann1/old.md").write_text(word)
    look_at_home(truth, tmp_path, "g0")
    assert kinds(truth) == ["erased", "erased bytes"]


def test_lines_that_are_lost_doubled_or_come_back_are_found() -> None:
    """Each remembered line is in the document once; one that was undone is not."""
    truth = a_truth()
    words = [truth.new_word("ann1") for _ in range(3)]
    for number, presence in enumerate((Presence.YES, Presence.YES, Presence.NO)):
        truth.remember(f"fact {number} is {words[number]}", "ann1", words[number])
        truth.settle(f"fact {number} is {words[number]}", presence)
    truth.check_document("ann1", f"- fact 0 is {words[0]}\n- fact 1 is {words[1]}\n", "document")
    assert truth.wrong == []
    line = f"- fact 2 is {words[2]}\n"
    truth.check_document("ann1", f"- fact 0 is {words[0]}\n{line}{line}", "document")
    assert kinds(truth) == ["doubled line", "lost line", "line came back"]
