"""The system prompt is a pure function of a snapshot; what memory learns in between is a delta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent.memory.prompt.conversation import Conversation, ConversationCache
from agent.memory.prompt.prompt_snapshot import (
    MemoryView,
    ScopeMemory,
    TurnOpening,
    nest_headings,
    opening,
    system_prompt,
)
from agent.memory.storage.scope_documents import ScopeDocuments
from gateway.ports.journal import Line, SessionRow
from gateway.ports.memory import ScopeDocument, ScopeHead
from tests.fakes.documents import FakeDocuments, open_documents
from tests.fakes.memory import ANN, SCOPE, START, TRANSCRIPT, FakeRecords, exchange

ROW = SessionRow(key=ANN, transcript=TRANSCRIPT, next_index=0, created_at=START)
ZONE = "Europe/Berlin"


def view(memory: str = "- tea", *, user: str = "Ann", soul: str = "", shared: str = "") -> MemoryView:
    """Return a state of memory; its rev is its content."""
    return MemoryView(soul=soul, user=user, memory=memory, shared=shared, rev=repr((memory, user, soul, shared)))


async def conversation(tmp_path: Path) -> Conversation:
    """Return a conversation that has not begun."""
    return await ConversationCache(FakeRecords().transcripts).open(ROW, SCOPE)


def begin(talk: Conversation, memory: MemoryView, zone: str = ZONE, abilities: str = "look") -> TurnOpening:
    """Open a turn and commit it."""
    begun = opening(talk, memory, zone, abilities=abilities, at=talk.next_index)
    talk.adopt(exchange(talk.next_index, talk.next_index, before=begun.lines, blobs=begun.blobs))
    return begun


def kinds(begun: TurnOpening) -> list[str]:
    """Return the kinds of the opening's lines."""
    return [line["kind"] for line in begun.lines]


async def test_the_first_turn_takes_a_snapshot_and_the_next_ones_nothing(tmp_path: Path) -> None:
    """While nothing changes, nothing is written and the prompt is the same bytes."""
    talk = await conversation(tmp_path)
    assert kinds(begin(talk, view())) == ["snapshot"]
    assert talk.snapshot is not None
    first = system_prompt(talk.snapshot)
    for _ in range(5):
        assert begin(talk, view()) == TurnOpening()
    assert system_prompt(talk.snapshot) == first


async def test_the_prompt_holds_everything_that_is_known_and_nothing_volatile(tmp_path: Path) -> None:
    """Voice, shared knowledge, user, memory, abilities, zone; what is empty has no heading."""
    talk = await conversation(tmp_path)
    begin(talk, view(soul="Speak like a pirate.", shared="The office is in Bonn."))
    assert talk.snapshot is not None
    prompt = system_prompt(talk.snapshot)
    for text in ("Speak like a pirate.", "The office is in Bonn.", "Ann", "- tea", "look", ZONE):
        assert text in prompt
    assert "2026" not in prompt
    begin(talk, view("", user=""), zone="UTC")
    assert "# What you remember" not in system_prompt(talk.snapshot)


async def test_headings_of_memory_nest_below_ours(tmp_path: Path) -> None:
    """`# Top` in MEMORY.md does not end the section; the snapshot keeps the text, so that the bytes stay the same."""
    memory = "# Top\n\n- tea\n\n## Sub\n\n```\n# a comment\n```\n\nTitle\n=====\n\n- dog\n\n###### Deep\n\n#tag"
    talk = await conversation(tmp_path)
    begin(talk, view(memory, user="# Ann\n\nBonn"))
    assert talk.snapshot is not None
    assert talk.snapshot.texts["MEMORY"] == memory
    prompt = system_prompt(talk.snapshot)
    ours = [line for line in prompt.splitlines() if line.startswith("# ") and line != "# a comment"]
    assert ours == ["# Where you are", "# About the user", "# What you remember", "# What you can do"]
    shown = prompt.partition("# What you remember\n\n")[2].partition("\n\n# What you can do")[0]
    assert shown == memory.replace("## Sub", "### Sub").replace("# Top", "## Top").replace("=====", "-----")
    assert system_prompt(talk.snapshot) == prompt
    assert nest_headings("- only\n\n## Second") == "- only\n\n## Second"


async def test_what_memory_learns_is_a_note(tmp_path: Path) -> None:
    """Added and removed lines, named by their document; the snapshot stays."""
    talk = await conversation(tmp_path)
    begin(talk, view("- tea\n- milk"))
    begun = begin(talk, view("- tea\n- dog", user="Ann\nBonn"))
    [delta] = begun.lines
    assert delta["added"] == [["USER", "Bonn"], ["MEMORY", "- dog"]]
    assert delta["removed"] == [["MEMORY", "- milk"]]
    assert "- dog" in delta["text"]
    assert "- milk" in delta["text"]
    assert begin(talk, view("- tea\n- dog", user="Ann\nBonn")) == TurnOpening()


async def test_a_second_delta_tells_only_what_the_first_did_not(tmp_path: Path) -> None:
    """What the model knows is the snapshot and every delta since; taking back is a change as well."""
    talk = await conversation(tmp_path)
    begin(talk, view("- a"))
    begin(talk, view("- a\n- b"))
    [delta] = begin(talk, view("- a\n- b\n- c")).lines
    assert (delta["added"], delta["removed"]) == ([["MEMORY", "- c"]], [])
    [back] = begin(talk, view("- a")).lines
    assert (back["added"], back["removed"]) == ([], [["MEMORY", "- b"], ["MEMORY", "- c"]])


async def test_news_that_no_turn_has_stored_are_told_again(tmp_path: Path) -> None:
    """A turn that read the news and was given back has told nobody: the next opening brings the same note."""
    talk = await conversation(tmp_path)
    begin(talk, view())
    first = opening(talk, view("- tea\n- oolong"), ZONE, abilities="look", at=talk.next_index)
    again = opening(talk, view("- tea\n- oolong"), ZONE, abilities="look", at=talk.next_index)
    assert kinds(first) == ["delta"]
    assert again == first


async def test_another_order_or_blank_lines_are_no_news(tmp_path: Path) -> None:
    """An editor that reformats the file costs nobody a cached prompt."""
    talk = await conversation(tmp_path)
    begin(talk, view("- a\n- b"))
    assert begin(talk, view("- b\n\n- a  ")) == TurnOpening()


async def test_a_new_zone_or_other_abilities_take_a_new_snapshot(tmp_path: Path) -> None:
    """Both stand in the prompt, which is never patched."""
    talk = await conversation(tmp_path)
    begin(talk, view())
    assert kinds(begin(talk, view(), zone="Asia/Tokyo")) == ["snapshot"]
    assert kinds(begin(talk, view(), zone="Asia/Tokyo", abilities="look, remember")) == ["snapshot"]
    assert kinds(begin(talk, view(), zone="Asia/Tokyo", abilities="look, remember")) == []


async def test_many_deltas_become_a_snapshot(tmp_path: Path) -> None:
    """Beyond 2,000 tokens of notes the next change folds them in."""
    talk = await conversation(tmp_path)
    begin(talk, view("- 0"))
    seen = []
    for n in range(1, 12):
        seen += kinds(begin(talk, view("\n".join(f"- {k} " + "x" * 900 for k in range(n)))))
    assert "snapshot" in seen
    assert seen.index("snapshot") == 8
    assert talk.snapshot is not None
    assert talk.snapshot.n == 2


async def test_a_snapshot_folds_earlier_notes_in_at_once(tmp_path: Path) -> None:
    """The request of that very turn has no old note in it, and neither have later ones."""
    talk = await conversation(tmp_path)
    begin(talk, view("- a"))
    begin(talk, view("- a\n- b"))
    assert any("[memory]" in message["content"] for message in talk.messages)
    begun = opening(talk, view("- a\n- b"), "UTC", abilities="look", at=talk.next_index)
    before = list(talk.messages_with(begun.lines))
    assert not any("[memory]" in message["content"] for message in before)
    talk.adopt(exchange(9, talk.next_index, before=begun.lines, blobs=begun.blobs))
    assert list(talk.messages)[: len(before)] == before


async def test_a_resumed_opening_gives_the_prompt_it_was_stored_with(tmp_path: Path) -> None:
    """A turn that is claimed again uses the snapshot of its stored step, not a new one."""
    talk = await conversation(tmp_path)
    begun = opening(talk, view(), ZONE, abilities="look", at=0)
    taken = talk.snapshot_with(begun.lines, begun.blobs)
    assert "- tea" in system_prompt(taken)
    assert taken.zone == ZONE


async def test_what_was_taken_back_is_gone_from_the_very_next_request(tmp_path: Path) -> None:
    """A deleted message is replaced in place, in this request and in all later ones."""
    talk = await conversation(tmp_path)
    begin(talk, view())
    gone: list[Line] = [{"kind": "forgotten", "mid": "m0"}]
    assert "question 0" not in str(talk.messages_with(gone))
    assert talk.messages_with([*gone]) is talk.messages_with(gone)  # drawn once for a request and its weight
    also: list[Line] = [*gone, {"kind": "forgotten", "mid": "m1"}]
    assert talk.messages_with(also) == talk.messages_with(gone)
    talk.adopt(exchange(1, 2, before=gone))
    assert talk.messages[0]["content"].endswith("[forgotten]")
    assert "question 1" in str(talk.messages_with(gone))
    assert "question 1" not in str(talk.messages_with(also))


async def test_edits_by_hand_are_looked_for_and_a_quiet_turn_reads_nothing() -> None:
    """One query is all that a turn costs while nothing changes; only documents that exist are read."""
    noticed: list[str] = []
    changes = CountedDocuments()

    async def notice(*scopes: str) -> None:
        noticed.extend(scopes)

    memory = ScopeMemory(ScopeDocuments(changes, notice=notice))
    first = await memory.view(SCOPE)
    assert sorted(noticed) == ["", SCOPE, "shared"]
    assert await memory.view(SCOPE) is first
    assert changes.reads == 0
    changes.put(SCOPE, MEMORY="- by hand\n")
    changes.reads = 0
    changed = await memory.view(SCOPE)
    assert changed.memory == "- by hand"
    assert changed.rev != first.rev
    assert await memory.view(SCOPE) is changed
    assert changes.reads == 1
    await changes.set_epoch(SCOPE, "t1")
    assert (await memory.view(SCOPE)).epoch == "t1"


async def test_with_the_version_of_its_claim_a_turn_asks_for_nothing() -> None:
    """A version that was seen before needs no query, unless this process has changed a document since the claim."""
    changes = CountedDocuments()
    memory = ScopeMemory(ScopeDocuments(changes))
    changes.put(SCOPE, MEMORY="- before\n")
    first = await memory.view(SCOPE, "1")
    changes.heads_read = 0
    assert await memory.view(SCOPE, "1") is first
    assert changes.heads_read == 0
    changes.put("people/somebody", MEMORY="- of another\n")
    assert await memory.view(SCOPE, "1") is first
    assert changes.heads_read == 1
    changes.put(SCOPE, MEMORY="- by the job before this turn\n")
    assert (await memory.view(SCOPE, "1")).memory == "- by the job before this turn"
    await changes.set_epoch(SCOPE, "t1")
    assert (await memory.view(SCOPE, "1")).epoch == "t1"
    changes.heads_read = 0
    await memory.view(SCOPE, "2")
    assert changes.heads_read == 1


async def test_a_scopes_own_voice_wins_and_shared_knowledge_reaches_everybody() -> None:
    """SOUL.md of the installation stands where the scope has none; nobody else's memory is in the view."""
    documents, _ = open_documents()
    await documents.write("", "SOUL.md", "everybody's", was="", why="t")
    await documents.write("shared", "MEMORY.md", "- office in Bonn", was="", why="t")
    await documents.write("people/telegram%3a43", "MEMORY.md", "- a secret", was="", why="t")
    memory = ScopeMemory(documents)
    seen = await memory.view(SCOPE)
    assert (seen.soul, seen.shared, seen.memory) == ("everybody's", "- office in Bonn", "")
    await documents.write(SCOPE, "SOUL.md", "mine", was="", why="t")
    assert (await memory.view(SCOPE)).soul == "mine"


class CountedDocuments(FakeDocuments):
    """Documents that count how often they are read."""

    reads = 0
    heads_read = 0

    async def heads(self, scopes: Sequence[str]) -> Mapping[str, ScopeHead]:
        """Count and read."""
        self.heads_read += 1
        return await super().heads(scopes)

    async def read(self, scope: str, name: str) -> ScopeDocument:
        """Count and read."""
        self.reads += 1
        return await super().read(scope, name)
