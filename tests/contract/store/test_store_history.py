"""History entries, raw messages and notes as they are stored, and never those of another scope."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gateway.errors import StoreUnavailable
from gateway.ports.memory import (
    HISTORY_JSONL,
    HISTORY_MD,
    RAW_JSONL,
    HistoryEntry,
    HistoryUpdate,
    MarkKind,
    NoteChange,
    ScopeHistory,
    StoredNote,
)
from gateway.store import history as statements
from gateway.store.sql_store import SqlStore
from gateway.text.json_lines import encode_entry, read_entry
from tests.contract.store.conftest import StoreBackend
from tests.fakes.memory import ANN, SCOPE
from tests.fakes.shared_workers import Workers
from tests.fakes.turns import plain_record

OTHER = "people/telegram%3a43"
NOTE, ARCHIVE = "2026-11-28.md", "2026-11-28.archive.md"
ODD = '\ud800 "\0" \u2028'


def entry(n: int, content: str = "", **fields: Any) -> HistoryEntry:
    """Return the *n*th thing that happened."""
    made = HistoryEntry(
        timestamp=f"2026-11-21 21:{n:02}",
        content=content or f"Talked about {n}.",
        session="telegram:42",
        start=n * 10,
        end=n * 10 + 10,
        origin="user",
        entry=f"e{n:016d}",
    )
    return replace(made, **fields)


def messages(*texts: str) -> list[dict[str, Any]]:
    """Return messages of a conversation."""
    return [{"role": "user", "content": text, "i": n} for n, text in enumerate(texts)]


async def contents(store: SqlStore, scope: str = SCOPE) -> list[tuple[int, str]]:
    """Return the cursors and texts of the entries."""
    return [(each.cursor, each.content) for each in await store.history.after(scope)]


async def stale(store: SqlStore, scope: str | None = SCOPE) -> list[str]:
    """Return the files that are to be printed again."""
    return sorted(each.path for each in await store.documents.stale_paths(scope))


async def print_all(store: SqlStore) -> None:
    """Note that every file was printed."""
    for file in await store.documents.stale_paths():
        await store.documents.drop_stale_path(file)


async def put_note(store: SqlStore, name: str, text: str, scope: str = SCOPE) -> None:
    """Store a note."""
    was = await store.history.note(scope, name)
    assert await store.history.write(scope, notes={name: NoteChange(was=was, body=text.encode())})


# -- entries -------------------------------------------------------------------------------------------


async def test_an_entry_a_pointer_and_a_change_are_stored_together(store: SqlStore) -> None:
    """With a change, without one, and again; a change that comes too late leaves nothing of the three."""
    session = await store.journal.session(ANN)
    pointer = plain_record("p1", session, scope=SCOPE, lines=({"kind": "pointer", "last_consolidated": 4},))
    update = HistoryUpdate(entry=entry(1), pointer=pointer)
    first = await store.documents.write(SCOPE, "MEMORY.md", "- tea\n", was="", why="t", beside=update)
    assert first is not None
    assert (await contents(store), await pointers(store)) == ([(1, "Talked about 1.")], ["p1"])
    for _ in range(2):  # a job that is run again
        assert await store.documents.write(SCOPE, "MEMORY.md", "- tea\n", was=first.rev, why="t", beside=update)
    late = HistoryUpdate(entry=entry(2), pointer=replace(pointer, turn="p2"))
    assert await store.documents.write(SCOPE, "MEMORY.md", "- milk\n", was="", why="t", beside=late) is None
    assert (await contents(store), await pointers(store)) == ([(1, "Talked about 1.")], ["p1"])
    assert await store.documents.write(OTHER, "MEMORY.md", "", was="", why="t", beside=HistoryUpdate(entry=entry(3)))
    assert await contents(store, OTHER) == [(1, "Talked about 3.")]
    await store.history.keep_raw(SCOPE, entry(4), messages("hello"), pointer=replace(pointer, turn="p4"))
    assert await pointers(store) == ["p1", "p4"]


async def pointers(store: SqlStore) -> list[str]:
    """Return the turns of the stored pointers."""
    return [each.turn for each in await store.records.unwritten(-(2**62), 99)]


async def test_an_entry_is_stored_once(backend: StoreBackend) -> None:
    """By its id, after a kill too; what is stored is returned, and cursors rise."""
    store = await backend.open()
    odd = entry(1, content=ODD, sources={"abc": 3}, keys={"abc": ODD})
    (first,) = await store.history.append(SCOPE, odd)
    assert first == replace(odd, cursor=1)
    store = await backend.reopen()
    stored = await store.history.append(
        SCOPE, entry(1, content="Another summary."), entry(2), entry(2), entry(3, entry="")
    )
    assert [each.cursor for each in stored] == [1, 2, 2, 3]
    assert await store.history.find(SCOPE, odd.entry) == first == stored[0]
    assert await store.history.find(SCOPE, "") is None
    assert [each.content for each in await store.history.after(SCOPE, 1, 1)] == ["Talked about 2."]


async def test_cursors_are_never_reused(store: SqlStore) -> None:
    """Neither after the newest entry was removed, nor below a cursor of Dream, nor below those of another file."""
    await store.history.append(SCOPE, entry(1), entry(2))
    await store.history.rewrite(SCOPE, lambda _, raw: b"" if b"about 2" in raw else raw)
    await store.history.append(SCOPE, entry(3))
    await store.history.advance_dream(SCOPE, 7)
    await store.history.append(SCOPE, entry(4))
    assert [cursor for cursor, _ in await contents(store)] == [1, 3, 8]
    kept = await store.history.load(SCOPE)
    assert await store.history.replace({SCOPE: replace(kept, cursor=20)}, was={SCOPE: kept})
    assert [each.cursor for each in await store.history.append(SCOPE, entry(5))] == [21]


async def test_two_histories_are_replaced_only_as_they_were_read(store: SqlStore) -> None:
    """What was appended to one of them meanwhile, or noted of its lines, is not lost: nothing is replaced then."""
    await store.history.append(SCOPE, entry(1))
    was = {scope: await store.history.load(scope) for scope in (SCOPE, OTHER)}
    wanted = {SCOPE: ScopeHistory(), OTHER: was[SCOPE]}
    await store.history.append(OTHER, entry(2))
    assert not await store.history.replace(wanted, was=was)
    assert [cursor for cursor, _ in await contents(store)] == [1]
    was[OTHER] = await store.history.load(OTHER)
    await store.history.write(SCOPE, marks={MarkKind.KEYS: {"abc": "kite"}})
    assert not await store.history.replace(wanted, was=was)
    was[SCOPE] = await store.history.load(SCOPE)
    assert was[SCOPE].marks == {MarkKind.KEYS: {"abc": "kite"}}
    assert await store.history.replace(wanted, was=was)
    assert await store.history.load(SCOPE) == ScopeHistory()
    assert await store.history.load(OTHER) == wanted[OTHER]


async def test_a_summary_replaces_what_was_kept_raw(store: SqlStore) -> None:
    """Its cursor and time stay, and the messages do; keeping them twice is once."""
    said = messages("red kite", "so it is")
    raw = await store.history.keep_raw(SCOPE, entry(1), said)
    assert await store.history.keep_raw(SCOPE, entry(1), said) == raw
    assert (raw.raw, raw.cursor) == (RAW_JSONL, 1)
    assert await store.history.raw_entries(SCOPE) == [raw]
    assert await store.history.raw_messages(SCOPE, raw.entry) == said
    await store.history.append(SCOPE, entry(2), entry(1, content="About a kite.", timestamp="2026-12-01 10:00"))
    assert await contents(store) == [(1, "About a kite."), (2, "Talked about 2.")]
    assert (await store.history.after(SCOPE))[0].timestamp == raw.timestamp
    assert not await store.history.raw_entries(SCOPE)
    await store.history.keep_raw(SCOPE, entry(2), said)  # it has a summary
    assert await store.history.raw_messages(SCOPE, entry(2).entry) == []


async def test_dream_goes_forward_only(store: SqlStore) -> None:
    """A scope has news until its newest entry was dreamt of."""
    await store.history.append(SCOPE, entry(1), entry(2))
    await store.history.append(OTHER, entry(1))
    await store.history.advance_dream(SCOPE, 2)
    await store.history.advance_dream(SCOPE, 1)
    assert await store.history.dream_cursor(SCOPE) == 2
    assert await store.history.scopes() == [SCOPE, OTHER]
    assert await store.history.scopes(with_news=True) == [OTHER]


async def test_cursors_of_two_gateways_rise_in_the_order_of_their_commits(team: Workers) -> None:
    """Each waits for the other's transaction before it takes one: a reader behind a cursor never misses a lower one."""
    one, two = await team.open(), await team.open()
    found: list[int] = []

    async def follow() -> None:
        while len(found) < 40:
            found.extend([each.cursor for each in await one.history.after(SCOPE, found[-1] if found else 0)])
            await asyncio.sleep(0)

    async def write(store: SqlStore, first: int) -> None:
        for n in range(first, first + 20):
            is_stored = False
            while not is_stored:
                with suppress(StoreUnavailable):  # the other one changes the same rows: try again
                    await store.history.append(SCOPE, entry(n))
                    is_stored = True

    async with asyncio.timeout(30):
        await asyncio.gather(follow(), write(one, 0), write(two, 20))
    assert found == list(range(1, 41))


# -- notes and marks -----------------------------------------------------------------------------------


async def test_a_note_changes_only_from_what_it_was(store: SqlStore) -> None:
    """With its marks, in one transaction: both or neither. None is a note that does not exist."""
    history = store.history
    first = NoteChange(was=None, body=b"- tea\n")
    marks = {MarkKind.FLUSHED: {"telegram:42": "c1", ODD: ODD}}
    assert await history.write(SCOPE, notes={NOTE: first}, marks=marks)
    assert not await history.write(SCOPE, notes={NOTE: first}, marks={MarkKind.FLUSHED: {"telegram:42": "c2"}})
    assert await history.marks(SCOPE, MarkKind.FLUSHED) == marks[MarkKind.FLUSHED]
    assert await history.marks(SCOPE, MarkKind.KEYS) == {}
    again = {NOTE: NoteChange(was=b"- tea\n", body=b"- tea\n- \xff\n"), ARCHIVE: NoteChange(was=None, body=b"x")}
    assert await history.write(SCOPE, notes=again, marks={MarkKind.FLUSHED: {"telegram:42": None}})
    assert await history.note(SCOPE, NOTE) == b"- tea\n- \xff\n"
    assert await history.note_names(SCOPE) == [ARCHIVE, NOTE]
    assert await history.marks(SCOPE, MarkKind.FLUSHED) == {ODD: ODD}
    assert await history.write(SCOPE, notes={ARCHIVE: NoteChange(was=b"x", body=None)})
    assert await history.note(SCOPE, ARCHIVE) is None


async def test_writers_of_one_note_lose_nothing(store: SqlStore) -> None:
    """Who comes second reads it again."""

    async def add(n: int) -> None:
        while True:
            was = await store.history.note(SCOPE, NOTE)
            if await store.history.write(SCOPE, notes={NOTE: NoteChange(was=was, body=(was or b"") + b"%d\n" % n)}):
                return

    await asyncio.gather(*map(add, range(10)))
    assert sorted(map(int, (await store.history.note(SCOPE, NOTE) or b"").split())) == list(range(10))


# -- changes of everything -----------------------------------------------------------------------------


async def fill(store: SqlStore, scope: str, word: str) -> None:
    """Store the word wherever text is stored."""
    await store.history.append(scope, *(entry(n) for n in range(1, 300)), entry(300, content=f"Likes {word}."))
    await store.history.keep_raw(scope, entry(301), messages("hello", word))
    await put_note(store, NOTE, f"- {word}\n- tea\n", scope)
    await store.history.write(scope, marks={MarkKind.KEYS: {"abc": word}})


async def test_words_are_erased_from_entries_raw_messages_and_notes(store: SqlStore) -> None:
    """Of this scope alone; cursors, ids and ranges stay. What becomes empty is removed."""
    await fill(store, SCOPE, "zeppelin")
    await fill(store, OTHER, "zeppelin")
    before, elsewhere = await store.history.load(SCOPE), await store.history.load(OTHER)
    seen: set[str] = set()

    def change(name: str, body: bytes) -> bytes:
        seen.add(name)
        if name == RAW_JSONL and b"zeppelin" in body:
            return b""
        return body.replace(b"zeppelin", b"-")

    await print_all(store)
    assert await store.history.rewrite(SCOPE, change) == 3
    assert await store.history.rewrite(SCOPE, change) == 0
    assert seen == {HISTORY_JSONL, RAW_JSONL, NOTE}
    after = await store.history.load(SCOPE)
    assert [read_entry(each) for each in after.entries] == [
        read_entry(each.replace(b"zeppelin", b"-")) for each in before.entries
    ]
    assert after.raws == before.raws[:1]
    assert after.notes[NOTE].body == b"- -\n- tea\n"
    assert await store.history.load(OTHER) == elsewhere
    assert await stale(store, None) == sorted(f"memory/{name}" for name in {*seen, HISTORY_MD})


async def test_what_is_written_during_an_erasure_is_read_again(store: SqlStore) -> None:
    """Compare-and-set on each row: neither the erasure nor the other writer is lost."""
    await put_note(store, NOTE, "- zeppelin\n")
    loop, tries = asyncio.get_running_loop(), 0

    def change(_: str, body: bytes) -> bytes:
        nonlocal tries
        tries += 1
        if tries == 1:
            asyncio.run_coroutine_threadsafe(put_note(store, NOTE, "- zeppelin\n- tea\n"), loop).result(10)
        return body.replace(b"zeppelin", b"-")

    assert await store.history.rewrite(SCOPE, change) == 1
    assert (await store.history.note(SCOPE, NOTE), tries) == (b"- -\n- tea\n", 2)


async def test_a_scope_is_replaced_and_removed_as_a_whole(backend: StoreBackend) -> None:
    """Its files are stale then: those that it had and those that it has. Another scope is not touched."""
    store = await backend.open()
    await fill(store, SCOPE, "kite")
    await store.history.advance_dream(SCOPE, 5)
    whole = await store.history.load(SCOPE)
    assert (whole.cursor, whole.dream_cursor, len(whole.entries)) == (301, 5, 301)
    assert whole.notes == {NOTE: StoredNote(body=b"- kite\n- tea\n")}
    assert whole.marks == {MarkKind.KEYS: {"abc": "kite"}}
    await print_all(store)
    owned = replace(whole, notes={ARCHIVE: StoredNote(body=b"x", owner="telegram:42")})
    was = {OTHER: ScopeHistory(), SCOPE: whole}
    assert await store.history.replace({OTHER: owned, SCOPE: ScopeHistory(cursor=whole.cursor)}, was=was)
    store = await backend.reopen()
    assert await store.history.load(OTHER) == owned
    assert await store.history.load(SCOPE) == ScopeHistory(cursor=301)
    files = [".dream_cursor", ".keys.json", HISTORY_JSONL, HISTORY_MD, RAW_JSONL]
    assert await stale(store) == sorted(f"memory/{name}" for name in [*files, NOTE])
    assert await stale(store, OTHER) == sorted(f"memory/{name}" for name in [*files, ARCHIVE])
    await store.history.remove(OTHER)
    assert await store.history.load(OTHER) == ScopeHistory()
    assert await store.history.scopes() == [SCOPE]


async def test_files_are_adopted_once(store: SqlStore) -> None:
    """A scope that was ever stored keeps its rows, an empty one too."""
    line = encode_entry(entry(4)).replace(b'"cursor":0', b'"cursor":9').replace(b'"origin"', b'"whose":"x","origin"')
    files = ScopeHistory(entries=[line], cursor=3, dream_cursor=2)
    assert await store.history.adopt(SCOPE, files)
    assert not await store.history.adopt(SCOPE, ScopeHistory())
    assert (await store.history.load(SCOPE)).entries == (line,)
    assert [each.cursor for each in await store.history.append(SCOPE, entry(5))] == [10]
    assert await store.history.adopt(OTHER, ScopeHistory())
    assert not await store.history.adopt(OTHER, files)


# -- files ---------------------------------------------------------------------------------------------


async def test_a_change_during_printing_is_printed_again(store: SqlStore) -> None:
    """A debt is paid for the rows that were read, in whichever way they change, and none for what does not."""
    await store.history.append(SCOPE, entry(1))
    (file,) = await store.documents.stale_paths(SCOPE)
    await store.history.append(SCOPE, entry(2))
    await store.documents.drop_stale_path(file)
    assert await stale(store) == ["memory/history.jsonl"]
    assert await stale(store, OTHER) == []
    await print_all(store)
    await store.history.append(SCOPE, entry(2))
    assert await stale(store) == []
    await store.history.write(SCOPE, marks={MarkKind.USED: {"abc": "2026-11-28T12:00"}})
    assert await stale(store) == ["memory/.used.json"]
    await print_all(store)
    await store.history.advance_dream(SCOPE, 1)
    assert await stale(store) == ["memory/.dream_cursor"]
    assert not await store.transcripts.stale_files()  # which are not these


def test_every_statement_names_the_scope() -> None:
    """Except the one that lists scopes."""
    texts = [
        value for name, value in vars(statements).items() if re.fullmatch(r"_[A-Z_]+", name) and isinstance(value, str)
    ]
    texts += [text for rows in statements._TEXT_ROWS for text in (rows.read, rows.change, rows.drop)]
    asked = [each for each in texts if re.match(r"SELECT|UPDATE|DELETE|INSERT", each)]
    assert len(asked) > 15
    unscoped = {each for each in asked if not re.search(r"scope = \?|\(scope, ", each)}
    assert unscoped == {statements._SCOPES}
