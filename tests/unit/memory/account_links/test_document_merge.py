"""Two documents as one and as two again: nothing is lost, nothing is doubled, and each line knows ownership it is."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent.memory.account_links.document_merge import (
    divide_documents,
    interleave_versions,
    merge_texts,
    move_documents,
    remove_entries,
    select_entries,
    trace_ownership,
)
from agent.memory.editing.memory_entries import EntryKind, parse
from gateway.ports.memory import DocumentChange, DocumentState
from tests.fakes.memory import START
from tests.fakes.store import open_inline_store

ANN, BOB = "pocket:ann", "pocket:bob"
WORDS = st.sampled_from(["red zeppelin", "boat Nora", "cat Tom", "dog Bello", "tea", "Lisbon in May"])
TEXTS = st.lists(
    st.one_of(WORDS.map(lambda word: f"- {word}"), WORDS.map(lambda word: f"\n## {word}\n")), max_size=8
).map("\n".join)


def entries(text: str) -> set[tuple[str, tuple[str, ...]]]:
    """Return what a text says, and under which headings."""
    return {(each.raw.strip(), each.headings) for each in parse(text)}


@given(TEXTS, TEXTS)
def test_joining_keeps_every_entry_where_it_stood_and_twice_is_once(first: str, second: str) -> None:
    """Each entry of both is there under its headings; joining again changes nothing."""
    both = merge_texts(first, second)
    assert entries(both) >= entries(first) | entries(second)
    assert merge_texts(both, second) == both
    assert merge_texts(first, "") == first


@given(TEXTS, TEXTS)
def test_what_is_taken_apart_is_all_there(mine: str, theirs: str) -> None:
    """After a trace each entry is in the half it came from; one that both had is in both."""
    ownership = trace_ownership([({"M": mine}, ANN), ({"M": merge_texts(mine, theirs)}, BOB)])
    both = merge_texts(mine, theirs)
    stays = remove_entries(both, lambda raw: ownership.is_only_owner("M", raw, BOB))
    goes = select_entries(both, lambda raw: ownership.is_owner("M", raw, BOB))
    said = {raw for raw, _ in entries(both) if not raw.startswith("#")}
    mine_said = {each.raw.strip() for each in parse(mine) if each.kind is not EntryKind.HEADING}
    assert {each.raw.strip() for each in parse(stays) if each.kind is not EntryKind.HEADING} == mine_said
    assert {each.raw.strip() for each in parse(goes) if each.kind is not EntryKind.HEADING} == said - mine_said


def test_a_line_that_says_what_the_other_said_in_other_words_is_mixed_and_stays() -> None:
    """Reworded by the other account, it belongs to both, and stays with who survives."""
    versions = [
        ({"M": "- Ann has a red zeppelin\n"}, ANN),
        ({"M": "- Ann has a red zeppelin\n- the boat is called Nora\n"}, BOB),
        ({"M": "- Ann has a big red zeppelin in Lisbon\n- the boat is called Nora\n"}, BOB),
    ]
    ownership = trace_ownership(versions)
    text = versions[-1][0]["M"]
    assert select_entries(text, lambda raw: ownership.is_owner("M", raw, BOB)) == "- the boat is called Nora\n"
    assert (
        remove_entries(text, lambda raw: ownership.is_only_owner("M", raw, BOB))
        == "- Ann has a big red zeppelin in Lisbon\n"
    )


def test_what_both_had_kept_is_both_of_theirs() -> None:
    """A line that each of them had before they were linked goes with both."""
    ownership = trace_ownership([({"M": "- likes tea\n"}, ANN), ({"M": ""}, ANN), ({"M": "- likes tea\n"}, BOB)])
    assert select_entries("- likes tea\n", lambda raw: ownership.is_owner("M", raw, BOB)) == "- likes tea\n"
    assert remove_entries("- likes tea\n", lambda raw: ownership.is_only_owner("M", raw, BOB)) == "- likes tea\n"


def test_a_heading_goes_with_what_stands_below_it() -> None:
    """A title is no fact of its own: it is where its entries are, and gone where none is left."""
    text = "# Boats\n\n- Nora\n\n# Air\n\n- the zeppelin\n"
    ownership = trace_ownership([({"M": "# Air\n\n- the zeppelin\n"}, ANN), ({"M": text}, BOB)])
    assert select_entries(text, lambda raw: ownership.is_owner("M", raw, BOB)) == "# Boats\n\n- Nora\n"
    assert remove_entries(text, lambda raw: ownership.is_only_owner("M", raw, BOB)).strip() == "# Air\n\n- the zeppelin"


def test_what_is_brought_back_is_whose_it_was() -> None:
    """A change that is taken back gives nobody anything new."""
    boat = {"M": "- the boat is called Nora\n"}
    ownership = trace_ownership([(boat, BOB), ({"M": ""}, ANN), (boat, "")], ANN)
    assert ownership.is_only_owner("M", "- the boat is called Nora", BOB)


def history(name: str, times: list[int]) -> list[DocumentState]:
    """Return versions of a document, each by the clock of the gateway that made it."""
    return [
        DocumentState(
            change=DocumentChange(id=f"{name}{n}", number=n + 1, at=START + timedelta(seconds=at), why="t"),
            texts={"MEMORY.md": f"- {name} {n}\n"},
        )
        for n, at in enumerate(times)
    ]


@given(*[st.lists(st.integers(0, 9), max_size=6)] * 2)
def test_joined_histories_keep_the_order_of_each(first: list[int], second: list[int]) -> None:
    """Clocks of gateways differ by minutes: with a link a corrected line came back, as its first version was newer."""
    sides = history("ann", first), history("bob", second)
    joined = list(interleave_versions(*sides, first_account=ANN, second_account=BOB))
    for side, name in zip(sides, ("ann", "bob"), strict=True):
        assert [each.change.id for each in side] == [
            each.change.id for each in joined if each.change.id.startswith(name)
        ]
    newest = "".join(side[-1].texts["MEMORY.md"] for side in sides if side)
    assert (joined[-1].texts["MEMORY.md"] if joined else "") == newest


LINES, VERSIONS = 20, 60


def long_history(name: str, account: str) -> Iterator[DocumentState]:
    """Yield versions of a document of 18 KB, each with its first line changed."""
    long = "long ago and far away " * 40
    lines = [f"- {name} {n}: {long}" for n in range(LINES)]
    for n in range(VERSIONS):
        lines[0] = f"- {name} 0, corrected {n} times"
        at = START + timedelta(seconds=2 * n)
        change = DocumentChange(id=f"{name}{n:06d}", number=n + 1, at=at, why="t", by=account)
        yield DocumentState(change=change, texts={"MEMORY.md": "\n".join(lines) + "\n"})


async def test_long_histories_are_merged_and_divided_without_all_versions_in_memory() -> None:
    """120 versions of 18 to 36 KB are 3 MB of texts: their lines are read, and the texts are made one by one."""
    store = await open_inline_store()
    documents = store.documents
    scopes = {"people/ann": ("ann", ANN), "people/bob": ("bob", BOB)}
    for scope, (name, account) in scopes.items():
        assert await documents.replace({scope: long_history(name, account)}, was={scope: 0})
    tracemalloc.start()
    try:
        await move_documents(documents, "m1", "people/bob", "people/ann", source_account=BOB, target_account=ANN)
        size = sum(len(each.texts["MEMORY.md"]) for each in await documents.states("people/ann"))
        await divide_documents(documents, "m2", "people/ann", "people/bob", BOB, lambda _: "", ANN)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 3_000_000
    assert peak < size // 2
    for scope, (name, account) in scopes.items():
        last = list(long_history(name, account))[-1].texts["MEMORY.md"]
        assert (await documents.read(scope, "MEMORY.md")).text == last
        assert len(await documents.states(scope)) == VERSIONS
    await store.close()
