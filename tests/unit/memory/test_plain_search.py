"""Plain recall: honest words, one scope."""

from __future__ import annotations

from pathlib import Path

from agent.memory.files.documents import FileDocuments
from agent.memory.files.lines import forgotten
from agent.memory.files.projector import Projector
from agent.memory.search.plain import PlainSearch
from gateway.events import SessionKey
from tests.fakes.memory import SCOPE, CountingDisk, FakeRecords, exchange, talk

MEMORY = "# Likes\n- Ann drinks green tea\n- Ann's dog is called Rex\n"


async def home(tmp_path: Path) -> PlainSearch:
    """Return a search over a scope that remembers and has talked, beside one that must not be seen."""
    documents = FileDocuments(tmp_path)
    await documents.write(SCOPE, "MEMORY.md", MEMORY, was="", why="t")
    await documents.write("shared", "MEMORY.md", "- the office dog is called Bello\n", was="", why="t")
    await documents.write("people/telegram%3a43", "MEMORY.md", "- Bob's dog is called Secret\n", was="", why="t")
    records = FakeRecords()
    records.commit(exchange(0, 0, said="My birthday is in March", answered="Noted."))
    records.commit(exchange(1, 2, said="What is the weather?"))
    await Projector(tmp_path, records).close()
    return PlainSearch(tmp_path, documents)


async def test_what_was_remembered_and_what_was_said_is_found(tmp_path: Path) -> None:
    """With its source and line; whatever the case and the small words around it."""
    search = await home(tmp_path)
    [best, *_] = await search.search(SCOPE, "what TEA does she drink?")
    assert (best.source, best.line, best.text) == ("MEMORY.md", 2, "- Ann drinks green tea")
    [said, *_] = await search.search(SCOPE, "When is my birthday?")
    assert said.text == "My birthday is in March"
    assert said.source == "sessions/telegram%3a42.jsonl"
    assert said.at is not None


async def test_shared_knowledge_is_found_and_other_peoples_is_not(tmp_path: Path) -> None:
    """The scope is in the path; nobody's question reaches another's memory."""
    search = await home(tmp_path)
    texts = [hit.text for hit in await search.search(SCOPE, "dog called")]
    assert texts == ["- Ann's dog is called Rex", "- the office dog is called Bello"]
    assert [hit.text for hit in await search.search("people/telegram%3a44", "dog Rex Secret")] == [
        "- the office dog is called Bello"
    ]


async def test_nothing_found_is_nothing(tmp_path: Path) -> None:
    """No hit rather than a bad one; an empty question has no answer."""
    search = await home(tmp_path)
    assert list(await search.search(SCOPE, "zeppelin")) == []
    assert list(await search.search(SCOPE, "?!")) == []


async def test_the_question_itself_is_no_answer(tmp_path: Path) -> None:
    """Asking twice does not find having asked."""
    search = await home(tmp_path)
    assert list(await search.search(SCOPE, "what is the weather")) == []


async def test_what_was_taken_back_is_not_found(tmp_path: Path) -> None:
    """A deleted message is gone from recall as well."""
    search = await home(tmp_path)
    records = FakeRecords()
    records.commit(exchange(2, 4, before=[forgotten("m0")]))
    await Projector(tmp_path, records).close()
    assert list(await search.search(SCOPE, "birthday march")) == []


async def test_the_limit_is_kept_and_rare_words_count_more(tmp_path: Path) -> None:
    """The one line with the rare word comes before the many with the common one."""
    documents = FileDocuments(tmp_path)
    text = "".join(f"- project note {n}\n" for n in range(20)) + "- project zeppelin\n"
    await documents.write(SCOPE, "MEMORY.md", text, was="", why="t")
    hits = await PlainSearch(tmp_path, documents).search(SCOPE, "project zeppelin", limit=3)
    assert [hit.text for hit in hits][:1] == ["- project zeppelin"]
    assert len(hits) == 3


async def test_a_search_costs_a_bounded_part_of_the_transcripts(tmp_path: Path) -> None:
    """However much was said in however many chats."""
    records = FakeRecords()
    for n in range(3):
        for record in talk(1_500, key=SessionKey("telegram", str(n)), said="zeppelin " * 20):
            records.commit(record)
    await Projector(tmp_path, records).close()
    disk = CountingDisk()
    await PlainSearch(tmp_path, FileDocuments(tmp_path), disk=disk).search(SCOPE, "zeppelin")
    assert disk.bytes_read < 400_000
