"""Documents as rows: changed by compare-and-set, with every version, and never those of another scope."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ports.memory import DocumentChange, DocumentState, ScopeHead, TextChange, rev_of
from gateway.store import documents as statements
from gateway.store.database import SharedDatabase
from gateway.store.documents import SqlDocuments
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.memory import SCOPE, FakeRecords
from tests.fakes.shared_workers import Workers

OTHER = "people/telegram%3a43"
AT = datetime(2026, 11, 28, 9, 0, tzinfo=UTC)
ANN = "telegram%3a42"
NAMES = ("MEMORY.md", "USER.md", "SOUL.md")


async def put(documents: SqlDocuments, scope: str = SCOPE, **texts: str) -> DocumentChange:
    """Replace documents, named without their ending, by one change."""
    was = {each: (await documents.read(scope, f"{each}.md")).rev for each in texts}
    changes = {f"{each}.md": TextChange(was[each], text) for each, text in texts.items()}
    change = await documents.change(scope, changes, why="test", by=ANN, at=AT)
    assert change is not None
    return change


async def undo(documents: SqlDocuments, change: DocumentChange) -> DocumentChange:
    """Put back what *change* changed, which must be the newest."""
    texts = await documents.changed_texts(SCOPE, change)
    changes = {name: TextChange(rev_of(after), before) for name, (before, after) in texts.items()}
    done = await documents.change(SCOPE, changes, why=f"undo {change.short}", undoes=change.id)
    assert done is not None
    return done


@pytest.mark.parametrize("text", ["a", "a\n", "\n", "\r\n", "a\r\nb\x0cc\u2028d\n\n", "\ufdd0x\x00\n", "- ü€😀"])
async def test_the_bytes_of_a_text_come_back(store: SqlStore, text: str) -> None:
    """Also from the next read, which knows them already, and the one after a change elsewhere."""
    written = await store.documents.write(SCOPE, "MEMORY.md", text, was="", why="t1")
    assert written is not None
    assert (written.text, written.rev) == (text, rev_of(text))
    for _ in range(2):
        assert await store.documents.read(SCOPE, "MEMORY.md") == written
    assert await store.documents.texts(SCOPE) == {"MEMORY.md": text}
    assert await SqlDocuments(store.documents._engine).read(SCOPE, "MEMORY.md") == written


async def test_text_that_utf8_cannot_hold_is_stored_with_a_mark(store: SqlStore) -> None:
    """A lone surrogate of a model's answer loses no other character."""
    written = await store.documents.write(SCOPE, "MEMORY.md", "- tea \ud800\n", was="", why="t1")
    assert written is not None
    assert written.text == "- tea ?\n"
    assert await store.documents.read(SCOPE, "MEMORY.md") == written


async def test_whoever_is_late_changes_nothing(store: SqlStore) -> None:
    """Of several documents, one that has changed is enough."""
    first = await put(store.documents, MEMORY="one\n")
    late = {"MEMORY.md": TextChange("", "two\n"), "USER.md": TextChange("", "Ann\n")}
    assert await store.documents.change(SCOPE, late, why="t2") is None
    assert await store.documents.texts(SCOPE) == {"MEMORY.md": "one\n"}
    assert list(await store.documents.log(SCOPE, limit=9)) == [first]
    same = await store.documents.change(SCOPE, {"MEMORY.md": TextChange(rev_of("one\n"), "one\n")}, why="t3")
    assert same is not None
    assert same.id == ""
    assert len(await store.documents.log(SCOPE, limit=9)) == 1


async def test_of_many_at_once_exactly_one_is_first(store: SqlStore) -> None:
    """A change whose document was changed back meanwhile is compared anew, and is stored."""
    tries = [store.documents.write(SCOPE, "MEMORY.md", f"{n}\n", was="", why=f"t{n}") for n in range(20)]
    written = [each for each in await asyncio.gather(*tries) if each is not None]
    assert [each.text for each in written] == [(await store.documents.read(SCOPE, "MEMORY.md")).text]


async def test_a_change_can_be_listed_found_and_compared(store: SqlStore) -> None:
    """The newest first; each with its cause, its person, its documents and its texts."""
    documents = store.documents
    first = await put(documents, MEMORY="- tea\n")
    second = await put(documents, MEMORY="- tea\n- dog\n", USER="Ann\n")
    third = await put(documents, SOUL="friendly\n", MEMORY="")
    assert list(await documents.log(SCOPE, limit=9)) == [third, second, first]
    assert list(await documents.log(SCOPE, limit=1)) == [third]
    assert list(await documents.log(SCOPE, limit=9, since=second.number)) == [third]
    assert (second.why, second.by, second.at, second.names) == ("test", ANN, AT, ("MEMORY.md", "USER.md"))
    assert [await documents.find(SCOPE, each) for each in (second.id, second.id[:4], second.id.upper())] == [second] * 3
    assert [await documents.find(SCOPE, each) for each in ("", "abc", "zzzz", "../..", "HEAD", "0" * 10)] == [None] * 6
    assert await documents.texts(SCOPE, second.number) == {"MEMORY.md": "- tea\n- dog\n", "USER.md": "Ann\n"}
    assert await documents.texts(SCOPE) == {"USER.md": "Ann\n", "SOUL.md": "friendly\n"}
    assert await documents.texts(SCOPE, first.number - 1) == {}
    assert await documents.changed_texts(SCOPE, second) == {
        "MEMORY.md": ("- tea\n", "- tea\n- dog\n"),
        "USER.md": ("", "Ann\n"),
    }
    assert await documents.changed_texts(SCOPE, replace(second, id="00000000")) == {}
    assert await documents.heads([SCOPE, OTHER]) == {
        SCOPE: ScopeHead(number=3, revs={"USER.md": rev_of("Ann\n"), "SOUL.md": rev_of("friendly\n")}),
        OTHER: ScopeHead(),
    }


async def test_ids_that_chats_show_are_found_by_their_eight_characters(store: SqlStore) -> None:
    """Those of git commits from before documents were rows, too."""
    change = DocumentChange(id="0123456789abcdef" * 2 + "01234567", number=0, at=AT, why="x")
    assert await store.documents.replace(
        {SCOPE: [DocumentState(change=change, texts={"USER.md": "x"})]}, was={SCOPE: 0}
    )
    found = await store.documents.find(SCOPE, change.short)
    assert found is not None
    assert (found.id, found.names, found.number) == (change.id, ("USER.md",), 1)


async def test_the_source_of_a_line_is_the_change_that_added_it(store: SqlStore) -> None:
    """Moving it is no new source, nor is bringing it back by an undo; writing it again is."""
    documents = store.documents
    await put(documents, MEMORY="- tea\n")
    dog = await put(documents, MEMORY="- tea\n- dog\n")
    await put(documents, MEMORY="- dog\n- tea\n- cat\n")
    assert await documents.source(SCOPE, "MEMORY.md", " - dog ") == dog
    gone = await put(documents, MEMORY="- tea\n", USER="Ann\n")
    assert await documents.source(SCOPE, "MEMORY.md", "- dog") is None
    await undo(documents, gone)
    assert await documents.texts(SCOPE) == {"MEMORY.md": "- dog\n- tea\n- cat\n"}
    assert await documents.source(SCOPE, "MEMORY.md", "- dog") == dog
    await put(documents, MEMORY="- tea\n")
    again = await put(documents, MEMORY="- tea\n- dog\n")
    assert await documents.source(SCOPE, "MEMORY.md", "- dog") == again


async def test_all_states_can_be_read_changed_and_put_in_place(store: SqlStore) -> None:
    """As an erasure does: the words are in no column, ids stay good, sources too, and numbers go on."""
    documents = store.documents
    first = await put(documents, MEMORY="- the zeppelin\n- tea\n", USER="Ann\n")
    gone = await put(documents, MEMORY="- tea\n")
    back = await undo(documents, gone)
    await documents.set_epoch(SCOPE, "t1")
    states = await documents.states(SCOPE)
    assert [each.change for each in states] == [first, gone, back]
    texts = [{name: text.replace("- the zeppelin\n", "") for name, text in each.texts.items()} for each in states]
    cleared = [replace(each, texts=after) for each, after in zip(states, texts, strict=True)]
    assert not await documents.replace({SCOPE: cleared}, was={SCOPE: 2})
    assert await documents.replace({SCOPE: cleared}, was={SCOPE: 3})
    assert not await documents.replace({SCOPE: states}, was={SCOPE: 3})  # nothing brings the words back
    assert "zeppelin" not in await everything(store)
    assert await documents.texts(SCOPE) == {"MEMORY.md": "- tea\n", "USER.md": "Ann\n"}
    found = await documents.find(SCOPE, first.id)
    assert found is not None
    assert found == replace(first, number=4)
    assert await documents.source(SCOPE, "MEMORY.md", "- tea") == found
    left = await documents.find(SCOPE, back.short)
    assert left is not None
    assert (left.id, left.names, left.undoes) == (back.id, (), gone.id)
    assert (await put(documents, MEMORY="")).number == 7
    assert (await documents.heads([SCOPE]))[SCOPE].epoch == "t1"


async def test_a_scope_without_states_is_gone(store: SqlStore) -> None:
    """With its epoch and its number; another one that is replaced with it is there in full, or nothing is changed."""
    await put(store.documents, MEMORY="- tea\n")
    await put(store.documents, OTHER, MEMORY="- dog\n")
    states = await store.documents.states(SCOPE)
    assert not await store.documents.replace({SCOPE: [], OTHER: states}, was={SCOPE: 1, OTHER: 0})
    assert await store.documents.replace({SCOPE: [], OTHER: states}, was={SCOPE: 1, OTHER: 1})
    assert await store.documents.scopes() == [OTHER]
    assert await store.documents.texts(OTHER) == {"MEMORY.md": "- tea\n"}
    assert (await store.documents.heads([SCOPE]))[SCOPE] == ScopeHead()


async def test_every_change_leaves_a_debt_for_its_files(backend: StoreBackend) -> None:
    """It survives a kill, is raised by the next change, and ends when what was read has been written."""
    store = await backend.open()
    await put(store.documents, MEMORY="- tea\n", SOUL="kind\n")
    store = await backend.reopen()
    stale = await store.documents.stale_paths(SCOPE)
    assert sorted((each.path, each.changes) for each in stale) == [("SOUL.md", 1), ("memory/MEMORY.md", 1)]
    await put(store.documents, MEMORY="- tea\n- dog\n")
    for each in stale:
        await store.documents.drop_stale_path(each)
    assert [(each.path, each.changes) for each in await store.documents.stale_paths()] == [("memory/MEMORY.md", 2)]
    for each in await store.documents.stale_paths():
        await store.documents.drop_stale_path(each)
    for _ in range(2):
        assert not await store.documents.stale_paths()
    assert not await store.transcripts.stale_files()
    await store.documents.replace({SCOPE: []}, was={SCOPE: 2})
    stale = await store.documents.stale_paths()
    assert sorted(each.path for each in stale) == ["SOUL.md", "memory/.git", "memory/MEMORY.md"]


async def test_a_debt_is_not_paid_by_who_has_read_an_earlier_one(backend: StoreBackend) -> None:
    """Of two flushes at once, the slower one drops what the other has paid, and not what a later change owes."""
    store = await backend.open()
    for make in ("- tea\n", "- dog\n", "- cat\n"):
        await put(store.documents, MEMORY=make)
        states = await store.documents.states(SCOPE)
        read = await store.documents.stale_paths()
        for each in read:
            await store.documents.drop_stale_path(each)  # by the faster one
        await put(store.documents, MEMORY=f"{make}- sea\n")
        number = (await store.documents.heads([SCOPE]))[SCOPE].number
        assert await store.documents.replace({SCOPE: states}, was={SCOPE: number})
        owed = {each.path for each in await store.documents.stale_paths()}
        for each in read:
            await store.documents.drop_stale_path(each)
        assert (
            {each.path for each in await store.documents.stale_paths()} == owed == {"memory/.git", "memory/MEMORY.md"}
        )


async def test_states_are_read_some_at_a_time(backend: StoreBackend) -> None:
    """Together they are all states, also behind numbers that a rewritten history has left out."""
    store = await backend.open()
    await put(store.documents, SOUL="kind\n")
    for n in range(5):
        await put(store.documents, MEMORY="".join(f"- {each}\n" for each in range(n % 3, n + 1)))
    for _ in range(2):
        every = await store.documents.states(SCOPE)
        some: list[DocumentState] = []
        while found := await store.documents.states(SCOPE, since=some[-1].change.number if some else 0, limit=2):
            assert len(found) <= 2
            some += found
        assert some == list(every)
        assert len(every) == 6
        assert await store.documents.replace({SCOPE: every}, was={SCOPE: every[-1].change.number})


async def test_changes_of_several_gateways_are_numbered_in_their_order(team: Workers) -> None:
    """A change that commits while another gateway makes one comes before or after it; no number is left out."""
    first, second = await team.open(), await team.open()
    documents = [store.documents for store in (first, second)]

    async def add(n: int) -> None:
        mine = documents[n % 2]
        while True:
            now = await mine.read(SCOPE, "MEMORY.md")
            if await mine.write(SCOPE, "MEMORY.md", f"{now.text}- {n}\n", was=now.rev, why=f"t{n}"):
                return

    await asyncio.gather(*(add(n) for n in range(12)))
    log = await documents[0].log(SCOPE, limit=99)
    assert [each.number for each in log] == list(range(12, 0, -1))
    text = (await documents[1].read(SCOPE, "MEMORY.md")).text
    assert sorted(text.splitlines()) == sorted(f"- {n}" for n in range(12))
    assert text == (await documents[0].read(SCOPE, "MEMORY.md")).text


@given(st.data())
def test_changes_and_undos_are_those_of_the_texts(data: st.DataObject) -> None:
    """Any sequence of changes, undos and erasures gives at each version the text that the sequence has on texts."""
    asyncio.run(_play(data))


async def _play(data: st.DataObject) -> None:
    documents = FakeRecords().documents
    versions: list[dict[str, str]] = [{}]
    changes: list[DocumentChange] = []
    lines = st.lists(st.sampled_from(["", "- tea", "- dog", "- cat", "# A", "\x0c", "x\r"]), max_size=6).map("\n".join)
    for _ in range(data.draw(st.integers(1, 8))):
        now = versions[-1]
        kind = data.draw(st.sampled_from(["change", "undo", "erase"]))
        if kind == "erase":
            states = await documents.states(SCOPE)
            versions = [{name: text.replace("dog", "") for name, text in each.items()} for each in versions]
            cleared = [replace(each, texts=texts) for each, texts in zip(states, versions[1:], strict=True)]
            head = (await documents.heads([SCOPE]))[SCOPE]
            assert await documents.replace({SCOPE: cleared}, was={SCOPE: head.number})
            if not states:
                versions = [{}]
            continue
        new = versions[data.draw(st.integers(0, len(versions) - 1))] if kind == "undo" else {}
        if kind == "change":
            new = now | {data.draw(st.sampled_from(NAMES)): data.draw(lines)}
        texts = {name: TextChange(rev_of(now.get(name, "")), new.get(name, "")) for name in NAMES}
        undone = data.draw(st.sampled_from(changes)).id if changes and kind == "undo" else ""
        change = await documents.change(SCOPE, texts, why=kind, undoes=undone)
        assert change is not None
        if change.id:
            changes.append(change)
            versions.append({name: text for name, text in new.items() if text})
    stored = await documents.states(SCOPE)
    assert [dict(each.texts) for each in stored] == [
        {name: text for name, text in each.items() if text} for each in versions[1:]
    ]
    assert [each.change.id for each in stored] == [each.id for each in changes]
    for n, state in enumerate(stored):
        assert await documents.texts(SCOPE, state.change.number) == state.texts
        changed = await documents.changed_texts(SCOPE, state.change)
        before = stored[n - 1].texts if n else {}
        assert changed == {name: (before.get(name, ""), state.texts.get(name, "")) for name in state.change.names}
    for name, text in (stored[-1].texts if stored else {}).items():
        for line in text.split("\n"):
            assert await documents.source(SCOPE, name, line) is not None


# -- one scope -----------------------------------------------------------------------------------------

CANARY = "canary-of-another-scope"
READS: dict[str, Callable[[SqlDocuments], Awaitable[object]]] = {
    "read": lambda store: store.read(SCOPE, "MEMORY.md"),
    "epoch": lambda store: store.epoch(SCOPE),
    "heads": lambda store: store.heads([SCOPE]),
    "texts": lambda store: store.texts(SCOPE),
    "log": lambda store: store.log(SCOPE, limit=9),
    "find": lambda store: store.find(SCOPE, "cafe"),
    "changed_texts": lambda store: store.changed_texts(SCOPE, canary_change()),
    "source": lambda store: store.source(SCOPE, "MEMORY.md", CANARY),
    "states": lambda store: store.states(SCOPE),
    "stale_paths": lambda store: store.stale_paths(SCOPE),
}
WRITES: dict[str, Callable[[SqlDocuments], Awaitable[object]]] = {
    "write": lambda store: store.write(SCOPE, "MEMORY.md", "x", was="", why="x"),
    "change": lambda store: store.change(SCOPE, {"SOUL.md": TextChange("", "x")}, why="x", undoes="cafecafe"),
    "replace": lambda store: store.replace({SCOPE: []}, was={SCOPE: 0}),
    "set_epoch": lambda store: store.set_epoch(SCOPE, "x"),
    "owe_files": lambda store: store.owe_files(SCOPE),
}
NEITHER = {"change_count", "scopes", "drop_stale_path", "is_adopted", "mark_adopted"}


def canary_change() -> DocumentChange:
    """Return the change of the other scope."""
    return DocumentChange(id="cafecafe", number=1, at=AT, why=CANARY, by=CANARY, names=("MEMORY.md",))


async def with_canary(documents: SqlDocuments) -> None:
    """Have a canary in every column of another scope."""
    states = [DocumentState(change=canary_change(), texts={"MEMORY.md": f"{CANARY}\n"})]
    assert await documents.replace({OTHER: states}, was={OTHER: 0})
    await documents.set_epoch(OTHER, CANARY)


@pytest.mark.parametrize("name", [*READS, *WRITES])
async def test_a_scope_has_nothing_of_another(store: SqlStore, name: str) -> None:
    """Neither is it read, nor changed."""
    documents = store.documents
    await with_canary(documents)

    async def theirs() -> object:
        return [await documents.states(OTHER), await documents.heads([OTHER]), await documents.stale_paths(OTHER)]

    before = await theirs()
    assert str(before).count(CANARY) >= 4
    found = await {**READS, **WRITES}[name](documents)
    assert "canary" not in str(found)
    assert await theirs() == before


def test_every_operation_is_tried_with_another_scope() -> None:
    """One that is added needs a line above."""
    methods = {name for each in SqlDocuments.__mro__[:2] for name in vars(each) if not name.startswith("_")}
    assert methods == {*READS, *WRITES, *NEITHER}


def test_every_statement_names_the_scope() -> None:
    """What reads or changes documents says whose."""
    tables = r"\b(FROM|INTO|UPDATE) (document|document_line|document_change|memory_scope|stale_file)\b"
    found = {name: text for name, text in vars(statements).items() if isinstance(text, str) and re.search(tables, text)}
    assert len(found) > 20
    assert [name for name, text in found.items() if "scope" not in text] == []


def rows_of(database: SharedDatabase, table: str) -> list[Any]:
    """Return all rows of a table."""
    return database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608


async def everything(store: SqlStore) -> str:
    """Return all rows of the tables of documents as text."""
    names = ("memory_scope", "document", "document_line", "document_change", "stale_file")
    engine = store.documents._engine
    return str([await engine.writer.submit(partial(rows_of, table=name)) for name in names])
