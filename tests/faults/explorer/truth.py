"""What must be true of the explored gateways: pure, told of everything that people did and saw.

Each thing that is said has a word of its own (`CANARY`), so that wherever a word turns up it is known whose it is, and
whether it was erased. Whatever was found wrong is a line in `wrong`, which begins with its kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from string import ascii_lowercase

from tests.fakes.isolation_canaries import CANARY

_NEAR = 80  # characters of a text that are shown beside a word


class LinkState(StrEnum):
    """Whether two accounts are one person; while it changes, both may be so."""

    APART = "apart"
    LINKED = "linked"
    CHANGING = "changing"


class Presence(StrEnum):
    """Whether a document has a line."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"  # its change was not confirmed


class Erasure(StrEnum):
    """How far a word was erased: from what the model is shown, or from every byte."""

    NONE = "none"
    ASKED = "asked"  # the person said yes and has not seen the reply
    FORGOTTEN = "forgotten"
    PURGED = "purged"


@dataclass(slots=True)
class SpokenWord:
    """One canary: whose it is, and what became of it."""

    owner: str  # account, or group
    erasure: Erasure = Erasure.NONE
    erased_at: int = 0


@dataclass(slots=True)
class SentMessage:
    """One message of a person, and every part that answered it."""

    number: str
    chat: str
    token: str  # the answer repeats it; "" for a command
    sent_at: int
    position: int = 0  # in its chat's queue; 0 until the gateway has accepted it, and of what passes the queue
    must_answer: bool = True
    is_deleted: bool = False
    parts: list[tuple[str, bool]] = field(default_factory=list)  # part and mark, in the order shown


@dataclass(slots=True)
class LinkedPair:
    """Two accounts of one human."""

    accounts: frozenset[str]
    state: LinkState = LinkState.APART
    changed_at: int = 0


@dataclass(slots=True)
class RememberedLine:
    """A line of a document that a person asked for."""

    account: str
    word: str
    presence: Presence = Presence.MAYBE
    is_by_hand: bool = False
    changed_at: int = 0


@dataclass(slots=True)
class Truth:
    """The model. Times are counts of events, not seconds."""

    pairs: list[LinkedPair]
    wrong: list[str] = field(default_factory=list)
    words: dict[str, SpokenWord] = field(default_factory=dict)
    messages: dict[str, SentMessage] = field(default_factory=dict)  # by number
    lines: dict[str, RememberedLine] = field(default_factory=dict)  # by text
    looks: int = 0  # words that were looked at
    step: int = 0
    _now: int = 0
    _positions: Counter[str] = field(default_factory=Counter)
    _names: Iterator[str] = field(default_factory=lambda: map("".join, product(ascii_lowercase, repeat=4)))

    def tick(self) -> int:
        """Return a moment after every earlier one."""
        self._now += 1
        return self._now

    def fail(self, kind: str, *words: object) -> None:
        """Note something wrong, once."""
        line = f"{kind}: step {self.step}: {' '.join(map(str, words))}"
        if line not in self.wrong:
            self.wrong.append(line)

    # -- who may read what -----------------------------------------------------------------

    def new_word(self, owner: str) -> str:
        """Return a word that only *owner* says."""
        word = f"kanari{next(self._names)}vogel"
        self.words[word] = SpokenWord(owner)
        return word

    def is_of(self, word: str, owner: str) -> bool:
        """Return True if *owner* said the word."""
        return word in self.words and self.words[word].owner == owner

    def pair_of(self, account: str) -> LinkedPair | None:
        """Return the pair that an account is in."""
        return next((each for each in self.pairs if account in each.accounts), None)

    def may_read(self, chat: str, owner: str, since: int) -> bool:
        """Return True if a prompt for a message sent at *since* may have words of *owner* in *chat*."""
        if chat == owner:
            return True
        pair = self.pair_of(chat)
        if pair is None or owner not in pair.accounts:
            return False
        return pair.state is not LinkState.APART or since <= pair.changed_at

    def look(self, where: str, chat: str, text: str, since: int) -> None:
        """Check the words in a text for *chat* that was made for a message sent at *since*; 0 = nobody knows when."""
        for word in dict.fromkeys(CANARY.findall(text)):
            self.looks += 1
            spoken = self.words.get(word)
            if spoken is None:
                self.fail("crossing", where, "has a word that nobody said:", word)
            elif not self.may_read(chat, spoken.owner, since):
                self.fail("crossing", where, "of", chat, "has", word, "of", spoken.owner)
            elif since and spoken.erasure in (Erasure.FORGOTTEN, Erasure.PURGED) and since > spoken.erased_at:
                at = text.index(word)
                near = text[max(0, at - _NEAR) : at + _NEAR]
                self.fail("erased", where, "of", chat, "has", word, "which was", spoken.erasure.value, repr(near))

    def look_at_bytes(self, where: str, readers: Collection[str] | None, text: str, deleted: bool = False) -> None:
        """Check the words in what is stored for *readers*; None = for everybody. *deleted*: rows that are no rows."""
        for word in dict.fromkeys(CANARY.findall(text)):
            self.looks += 1
            spoken = self.words.get(word)
            if spoken is None:
                self.fail("crossing", where, "has a word that nobody said:", word)
            elif spoken.erasure is Erasure.PURGED:
                self.fail("erased bytes", where, "has", word, "of", spoken.owner, "which was purged")
            elif (
                readers is not None
                and not deleted
                and not any(self.may_read(each, spoken.owner, self._now) for each in readers)
            ):
                self.fail("crossing", where, "has", word, "of", spoken.owner)

    # -- messages and answers --------------------------------------------------------------

    def send(self, number: str, chat: str, token: str = "") -> SentMessage:
        """Note that a person wrote; `accept` follows when a gateway has it."""
        self.messages[number] = found = SentMessage(number, chat, token, self.tick())
        return found

    def accept(self, message: SentMessage) -> None:
        """Note that a gateway confirmed it: it is answered after every one before it."""
        self._positions[message.chat] += 1
        message.position = self._positions[message.chat]

    def stop(self, chat: str) -> None:
        """Note a /stop: whatever has no answer may stay without one."""
        for each in self.messages.values():
            if each.chat == chat and not each.parts:
                each.must_answer = False

    def show(self, number: str, part: str, *, is_marked: bool) -> None:
        """Note a part on the platform that replies to a message."""
        found = self.messages.get(number)
        if found is None:
            return
        if not is_marked and any(part == shown for shown, _ in found.parts):
            self.fail("doubled", f"part {part} in {found.chat} is there twice without a mark")
        found.parts.append((part, is_marked))

    def answer(self, chat: str, token: str, part: str, *, is_marked: bool) -> None:
        """Note an answer of the model on the platform; two turns for one message are wrong, marked or not."""
        found = next((each for each in self.messages.values() if each.token == token), None)
        if found is None or found.chat != chat:
            self.fail("crossing", "an answer to", token, "stands in", chat)
            return
        turns = {shown.rpartition(".")[0].rpartition(".")[0] for shown, _ in found.parts}
        if len(turns | {part.rpartition(".")[0].rpartition(".")[0]}) > 1:
            self.fail("doubled", token, "in", chat, "was answered by", *sorted(turns))

    def check_answers(self) -> None:
        """Check that each message that must be answered is, and that answers follow their messages' order."""
        for each in self.messages.values():
            if each.position and each.must_answer and not each.parts:
                self.fail("lost", f"message {each.number} {each.token} in {each.chat} has no answer")

    def check_order(self, chat: str, tokens: Iterable[str]) -> None:
        """Check the *tokens* of a chat's answers, in the order in which they were first shown."""
        places = {each.token: each.position for each in self.messages.values() if each.token}
        found = [places[token] for token in dict.fromkeys(tokens) if places.get(token)]
        if found != sorted(found):
            self.fail("order", chat, "was answered in the order", found)

    # -- documents -------------------------------------------------------------------------

    def remember(self, text: str, account: str, word: str, *, is_by_hand: bool = False) -> None:
        """Note that a line was asked for; `settle` follows with the reply."""
        self.lines[text] = RememberedLine(account, word, is_by_hand=is_by_hand, changed_at=self.tick())

    def settle(self, text: str, presence: Presence) -> None:
        """Note what a reply says of a line; an erasure that was asked for meanwhile stays."""
        line = self.lines[text]
        line.changed_at = self.tick()
        if self.words[line.word].erasure is Erasure.NONE or presence is Presence.NO:
            line.presence = presence

    def erase(self, word: str, erasure: Erasure) -> None:
        """Note how far the erasure of a word has come."""
        spoken = self.words[word]
        spoken.erasure, spoken.erased_at = erasure, self.tick()
        for line in self.lines.values():
            if line.word == word:
                line.presence = Presence.MAYBE if erasure is Erasure.ASKED else Presence.NO

    def check_document(self, account: str, shown: str, where: str, *, is_whole: bool = True) -> None:
        """Check what is remembered for *account*: every line of its own that must be there, none twice."""
        found = [line.strip().removeprefix("- ") for line in shown.splitlines() if line.strip().startswith("- ")]
        for text, times in Counter(found).items():
            if times > 1:
                self.fail("doubled line", where, "has", times, "times:", text)
        for text, line in self.lines.items():
            if line.account != account:
                continue
            if line.presence is Presence.YES and text not in found and is_whole:
                kind = "hand edit lost" if line.is_by_hand else "lost line"
                self.fail(kind, where, "lacks:", text)
            if line.presence is Presence.NO and text in found:
                self.fail("line came back", where, "has:", text)
        self.look(where, account, shown, self._now)
