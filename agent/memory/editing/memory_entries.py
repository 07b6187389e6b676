"""MEMORY.md as entries: headings, list items, paragraphs, fenced code; read and written back without a loss."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import regex

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]|$)")
_ITEM = re.compile(r"([ \t]*)(?:[-*+•]|\d{1,9}[.)])(?:[ \t]+(.*))?$")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_DEEPEST = 8  # items around an item that count for what it means
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")


class EntryKind(Enum):
    """Kinds of entries."""

    HEADING = "heading"
    ITEM = "item"
    PARAGRAPH = "paragraph"
    FENCE = "fence"
    RULE = "rule"  # `---`


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEntry:
    """One thing that a text says. `raw` are its lines as they stand, without the blank ones around it."""

    kind: EntryKind
    raw: str
    gap: int = 0  # blank lines before it
    level: int = 0  # of a heading, from 1
    depth: int = 0  # of an item: its indentation
    headings: tuple[str, ...] = ()  # titles of the headings above it, the outermost first
    parents: tuple[str, ...] = ()  # raws of the items it is nested in, the outermost first

    @property
    def text(self) -> str:
        """The text without list marks and heading signs."""
        lines = self.raw.split("\n")
        if self.kind is EntryKind.HEADING:
            return _title(self.raw) if len(lines) == 1 else lines[0].strip()
        if self.kind is EntryKind.ITEM:
            found = _ITEM.match(lines[0])
            lines[0] = (found.group(2) or "") if found else lines[0]
        return "\n".join(line.strip() for line in lines).strip()

    @property
    def context(self) -> tuple[str, ...]:
        """The texts above it: headings, then the items it is nested in."""
        return (*self.headings, *map(_text_of_item, self.parents))


@lru_cache(maxsize=1_024)
def _text_of_item(raw: str) -> str:
    return MemoryEntry(kind=EntryKind.ITEM, raw=raw).text


def parse(text: str) -> list[MemoryEntry]:
    """Return the entries of *text*, in order; `render` gives the text back."""
    reader = _EntryParser()
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        reader.feed(line)
    return reader.finish()


def render(entries: Sequence[MemoryEntry]) -> str:
    """Return the text of *entries*; blank lines are added where an entry would run into the one before."""
    lines: list[str] = []
    before: MemoryEntry | None = None
    for entry in entries:
        least = 0 if before is None else _least_gap(before, entry)
        lines += [""] * max(entry.gap, least)
        lines.append(entry.raw)
        before = entry
    return "\n".join(lines) + "\n" if lines else ""


def _least_gap(before: MemoryEntry, entry: MemoryEntry) -> int:
    """Return the number of blank lines without which two entries would be parsed as one."""
    if entry.kind is EntryKind.RULE:
        return 1 if before.kind is EntryKind.PARAGRAPH else 0  # or it would underline a title
    is_lazy = entry.kind is EntryKind.PARAGRAPH or (entry.kind is EntryKind.HEADING and "\n" in entry.raw)
    return 1 if is_lazy and before.kind in (EntryKind.ITEM, EntryKind.PARAGRAPH) else 0


class _EntryParser:
    """Gathers lines into entries."""

    def __init__(self) -> None:
        self._done: list[MemoryEntry] = []
        self._open: MemoryEntry | None = None
        self._lines: list[str] = []
        self._blank = 0
        self._fence = ""  # the marker that closes the open fence
        self._titles: list[tuple[int, str]] = []
        self._items: list[tuple[int, str]] = []  # (depth, raw) of the items around

    def feed(self, line: str) -> None:
        """Take one line."""
        if self._fence:
            self._lines.append(line)
            mark = line.strip()
            if mark.startswith(self._fence) and not mark.strip(self._fence[0]):
                self._fence = ""
            return
        if not line.strip():
            self._blank += 1
            return
        if not self._goes_on(line):
            self._begin(line)
        if found := _FENCE.match(line):
            self._fence = found.group(1)

    def finish(self) -> list[MemoryEntry]:
        """Return the entries after the last line."""
        if self._fence:  # never closed, as in a cut answer: close it, or later text would become part of it
            while not self._lines[-1].strip():
                self._lines.pop()
            self._lines.append(self._fence)
        self._close()
        return self._done

    def _goes_on(self, line: str) -> bool:
        """Add the line to the open entry if it belongs there."""
        entry = self._open
        if entry is None or entry.kind not in (EntryKind.ITEM, EntryKind.PARAGRAPH):
            return False
        if entry.kind is EntryKind.PARAGRAPH and not self._blank and len(self._lines) == 1 and _UNDERLINE.match(line):
            level = 1 if "=" in line else 2
            self._titles = [each for each in self._titles if each[0] < level]
            self._open = replace(entry, kind=EntryKind.HEADING, level=level, headings=self._above())
            self._lines.append(line)
            self._titles.append((level, self._lines[0].strip()))
            self._items = []
            return True
        in_item = entry.kind is EntryKind.ITEM and _indent(line) > max(entry.depth, 1)
        if _starts(line, in_item=in_item) or (self._blank and not in_item):
            return False
        self._lines += [""] * self._blank
        self._blank = 0
        self._lines.append(line)
        return True

    def _begin(self, line: str) -> None:
        self._close()
        gap, self._blank = self._blank, 0
        if found := _HEADING.match(line):
            level, title = len(found.group(1)), _title(line)
            self._titles = [each for each in self._titles if each[0] < level]
            self._items = []
            self._open = MemoryEntry(kind=EntryKind.HEADING, raw="", gap=gap, level=level, headings=self._above())
            self._titles.append((level, title))
        elif _RULE.match(line):
            self._items = []
            self._open = MemoryEntry(kind=EntryKind.RULE, raw="", gap=gap, headings=self._above())
        elif _ITEM.match(line):
            depth = _indent(line)
            self._items = [each for each in self._items if each[0] < depth]
            self._open = MemoryEntry(
                kind=EntryKind.ITEM, raw="", gap=gap, depth=depth, headings=self._above(), parents=self._around()
            )
            self._items.append((depth, line))
        else:
            kind = EntryKind.FENCE if _FENCE.match(line) else EntryKind.PARAGRAPH
            self._items = [each for each in self._items if each[0] < _indent(line)]
            self._open = MemoryEntry(kind=kind, raw="", gap=gap, headings=self._above(), parents=self._around())
        self._lines = [line]

    def _around(self) -> tuple[str, ...]:
        return tuple(raw for _, raw in self._items[-_DEEPEST:])

    def _above(self) -> tuple[str, ...]:
        return tuple(title for _, title in self._titles)

    def _close(self) -> None:
        if self._open is not None:
            raw = "\n".join(self._lines)
            self._done.append(replace(self._open, raw=raw))
            if self._open.kind is EntryKind.ITEM:  # nested items have all of its lines as their context
                self._items[-1] = (self._open.depth, raw)
        self._open, self._lines = None, []


def _starts(line: str, *, in_item: bool) -> bool:
    """Return True if the line always begins an entry; a fence inside an item does not."""
    if _ITEM.match(line) or _HEADING.match(line):
        return True
    return not in_item and bool(_FENCE.match(line) or _RULE.match(line))


def _title(line: str) -> str:
    """Return the title of a `#` heading, without the signs before and after it."""
    text = line.strip().lstrip("#").strip()
    bare = text.rstrip("#")
    return bare.rstrip() if not bare or bare[-1] in " \t" else text


def _indent(line: str) -> int:
    width = 0
    for character in line:
        if character == "\t":
            width += 4 - width % 4
        elif character == " ":
            width += 1
        else:
            break
    return width


_FEW = 3  # an entry of fewer words means nothing without its heading
_WALL = 12  # words that a replacement may have beyond three times the old entry's
# Scripts without spaces between words: each sign counts as one.
_SIGN = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
_WORD = regex.compile(
    _SIGN.pattern + r"|\p{Emoji_Presentation}"
    r"|[\p{L}\p{M}\p{N}_]+(?:['’][\p{L}]+)?(?:[.:/@+#%-]+[\p{L}\p{M}\p{N}_]+)*[+#%]*"
    r"|[$€£¥]"
)


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_GLUE = _words(
    "a an the is are am be has have of to in on at for as by and that this it its the their his her my your our",
    "they he she we i you who which user user's user’s users s",
    "der die das den dem des ein eine einen einem einer ist sind hat haben und im am zu",
    "le la les l un une des est sont et de du el los las una es son y il lo gli è e o os",
)
_NO = _words(
    "no not never none nobody nothing without neither nor cannot don't doesn't didn't isn't aren't wasn't weren't",
    "won't can't couldn't shouldn't wouldn't hasn't haven't hadn't former formerly anymore",
    "false untrue wrong incorrect mistaken denied denies disproved invalid revoked outgrown cured n/a ❌ 🚫",
    "nicht nie niemals kein keine keinen keinem keiner keines keinerlei ohne nichts nein falsch unwahr ehemals",
    "ehemalig ehemalige ehemaliger irrtümlich widerlegt ungültig widerrufen",
    "non mai senza pas jamais sans aucun aucune ne faux fausse inexact démenti ancien ancienne nul nulle",
    "nunca sin nada ningún ninguna ninguno tampoco falso falsa incorrecto incorrecta",
    "não nem sem niet geen nooit zonder не нет никогда без ні nie nigdy bez",
    "inte aldrig ingen ikke aldri 不 没 無 无 非 未 否",
)
_COPULAS = _words("is are am be has have ist sind hat haben est sont es son è s user's")
# In "X is Y" the sides may be exchanged. Not "son": in "Ann: son Bob" they may not.
_IDENTITY = _words("is are ist sind est sont es è heisst")
_NAMED = frozenset(("called", "named"))  # "is called"
_ARTICLES = _words("a an the der die das den dem ein eine einen", "le la les un une el los las una il lo gli")
_CONJUNCTIONS = frozenset(("and", "und", "et", "y", "e"))
_PREPOSITIONS = _words(
    "in on at since until from to for with during before after every", "im am seit bis ab bei mit nach en desde"
)
_DEGREE = frozenset(("longer", "any", "more", "mehr", "plus", "ya", "now", "actually", "since"))
_ENDINGS = frozenset(("", "s", "es", "e", "d", "ed", "ing", "n", "en", "er", "r", "'s", "’s"))


@dataclass(frozen=True, slots=True)
class EntryWords:
    """The words of a text: all of them in order, and which of them carry it."""

    words: tuple[str, ...]  # folded, in order
    carrying: tuple[str, ...]  # without articles, pronouns and the like
    exact: tuple[str, ...]  # names and numbers, in order: never inflected, never swapped
    negations: frozenset[str] = frozenset()

    @property
    def is_negated(self) -> bool:
        """True if the text denies something, or strikes it out."""
        return bool(self.negations)


@lru_cache(maxsize=8_192)
def extract_words(text: str) -> EntryWords:
    """Return the words of *text*."""
    found = [match.group() for match in _WORD.finditer(unicodedata.normalize("NFKC", text))]
    words = tuple(word.casefold() for word in found)
    carrying = tuple(word for word in words if word not in _GLUE)
    exact = tuple(word for n, word in enumerate(words) if word not in _GLUE and _is_exact(found[n], first=n == 0))
    struck = ["~~"] if "~~" in text else []
    return EntryWords(words, carrying, exact, frozenset([*filter(_is_negation, words), *struck]))


def _is_negation(word: str) -> bool:
    return word in _NO or word.endswith(("n't", "n’t")) or word.startswith(("non-", "ex-", "nicht-", "n'", "n’"))


def _is_exact(word: str, *, first: bool) -> bool:
    """Return True if a word is a name or a number; the capital of a text's first word does not count."""
    if any(character.isnumeric() for character in word) or _SIGN.match(word):
        return True
    return word != word.lower() and not (first and word == word.capitalize())


def is_same(old: MemoryEntry, new: MemoryEntry) -> bool:
    """Return True if two entries have the same words in the same order (code: the same characters)."""
    if EntryKind.FENCE in (old.kind, new.kind):
        return old.kind is new.kind and _strip_lines(old.raw) == _strip_lines(new.raw)
    one, other = extract_words(old.text), extract_words(new.text)
    is_alike = one.words == other.words and one.is_negated is other.is_negated
    return is_alike and (bool(one.words) or old.text == new.text)


class AnalyzedEntry:
    """An entry and its words, read once, for comparing it with many."""

    __slots__ = ("_starts", "around", "entry", "have", "said", "text")

    def __init__(self, entry: MemoryEntry) -> None:
        self.entry = entry
        self.text = entry.text
        self.said = extract_words(self.text)
        # Words of its headings and parent items count too.
        self.around = tuple(word for text in entry.context for word in extract_words(text).words)
        self.have = frozenset((*self.around, *self.said.words))
        self._starts: dict[str, list[str]] = {}
        for word in self.have:
            self._starts.setdefault(word[:3], []).append(word)

    def says(self, word: str) -> bool:
        """Return True if the entry or its context contains the word or an inflection of it."""
        return word in self.have or any(is_inflection(word, other) for other in self._starts.get(word[:3], ()))

    def needed(self) -> tuple[str, ...]:
        """Return words of the heading that a replacement of a short entry must contain too."""
        is_short = len(self.said.carrying) < _FEW and self.entry.kind is not EntryKind.HEADING
        return extract_words(self.entry.context[-1]).carrying if is_short and self.entry.context else ()


@lru_cache(maxsize=8_192)
def analyze(entry: MemoryEntry) -> AnalyzedEntry:
    """Return the entry and its words; documents are compared again after every edit."""
    return AnalyzedEntry(entry)


def replaces(new: MemoryEntry, old: MemoryEntry) -> bool:
    """Return True if *new* contains all words of *old*: the same text, or a rewording.

    Names, numbers and links must be unchanged and in order; other words may be inflected, and articles may be missing.
    Words in the heading above *new* count too. A new negation makes it another statement, and so does a text many times
    as long. An entry of one or two words needs its heading's words as well.
    """
    return analyzed_replaces(analyze(new), analyze(old))


def analyzed_replaces(new: AnalyzedEntry, old: AnalyzedEntry) -> bool:
    """Do what `replaces` does, for analyzed entries."""
    kinds = (old.entry.kind, new.entry.kind)
    if EntryKind.RULE in kinds:
        return kinds[0] is kinds[1]
    same = is_same(old.entry, new.entry)
    if EntryKind.FENCE in kinds and not same:
        return False
    mine, its, needed = old.said, new.said, old.needed()
    if same:
        return all(map(new.says, needed))
    if not mine.carrying or len(its.carrying) > 3 * (len(mine.carrying) + len(needed)) + _WALL:
        return False
    if its.is_negated is not mine.is_negated:
        return False
    is_ordered = _in_order(_anchors(mine), new.around + its.words) or is_reordered(mine, its)
    return is_ordered and all(map(new.says, (*mine.carrying, *needed)))


def is_reordered(one: EntryWords, other: EntryWords) -> bool:
    """Return True if two texts have the same words in another order that cannot change who does what.

    That is the case if the sides of "X is Y" are exchanged, or two words around one "and" at the beginning or end, or
    if a phrase that begins with a preposition moves between beginning and end. Negated texts never match.
    """
    if one.is_negated or other.is_negated:
        return False
    mine, its = ([word for word in each.words if word not in _ARTICLES] for each in (one, other))
    sides = _sides(mine)
    if sides is not None and sides[::-1] == _sides(its):
        return True
    if len(mine) != len(its):
        return False
    if any(mine[n:] + mine[:n] == its for n in range(1, len(mine)) if {mine[0], mine[n]} & _PREPOSITIONS):
        return True
    joints = [n for n, word in enumerate(mine) if word in _CONJUNCTIONS]
    # Not "Ann and Ben are 3 and 4", nor "Ann loves Bob and Cem hates Dan".
    if len(joints) != 1 or joints[0] not in (1, len(mine) - 2) or any(map(str.isnumeric, "".join(mine))):
        return False
    n = joints[0]
    return [*mine[: n - 1], mine[n + 1], mine[n], mine[n - 1], *mine[n + 2 :]] == its


def _sides(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the words before and after the only verb of a text if that is a form of "is"; else None."""
    verbs = [n for n, word in enumerate(words) if word in _IDENTITY]
    if len(verbs) != 1:
        return None
    n = verbs[0]
    end = n + 2 if words[n + 1 : n + 2] and words[n + 1] in _NAMED else n + 1
    return (words[:n], words[end:]) if n and words[end:] else None


def begins_alike(whole: AnalyzedEntry, piece: AnalyzedEntry) -> bool:
    """Return True if *whole* has no other subject before the words of *piece*, such as "Bob" or "favourite"."""
    words = whole.said.words
    for word, following in zip(words, (*words[1:], ""), strict=False):
        if piece.says(word) and word not in _GLUE:
            return True
        is_verb = following in _GLUE and following not in _COPULAS  # "works at", but not "Bob is"
        if word not in _GLUE and word not in _DEGREE and word not in whole.said.negations and not is_verb:
            return False
    return True


def denies(new: AnalyzedEntry, entry: AnalyzedEntry) -> bool:
    """Return True if *new* repeats *entry* with a negation, or without its own."""
    topics = [word for word in entry.said.carrying if word not in entry.said.negations]
    return entry.said.is_negated is not new.said.is_negated and bool(topics) and all(map(new.says, topics))


def is_bare(new: AnalyzedEntry, entry: AnalyzedEntry) -> bool:
    """Return True if *new* says nothing beyond *entry* but a negation."""
    return all(entry.says(word) or word in new.said.negations or word in _DEGREE for word in new.said.carrying)


def _anchors(mine: EntryWords) -> tuple[str, ...]:
    """Return the words whose order matters: names and numbers, and what the entry begins with, often a name too."""
    if not mine.exact or mine.words[0] in mine.exact or mine.words[0] in _GLUE:
        return mine.exact
    return (mine.words[0], *mine.exact)


def _in_order(anchors: tuple[str, ...], words: tuple[str, ...]) -> bool:
    n = 0
    for word in words:
        if n < len(anchors) and (word == anchors[n] or (n == 0 and is_inflection(anchors[n], word))):
            n += 1
    return n == len(anchors)


def is_inflection(one: str, other: str) -> bool:
    """Return True if two folded words differ only in a common ending: prefer(s|red|ring), stud(y|ies), cat(s)."""
    if one == other:
        return True
    if one[:3] != other[:3] or any(map(str.isnumeric, one + other)):
        return False
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    endings = {one[n:], other[n:]}
    if n == 3:
        return endings == {"", "s"}
    if n < 4:
        return False
    if "y" in endings:
        return bool(endings & {"ies", "ied"})
    doubled = one[n - 1]  # prefer, preferred
    return all(ending in _ENDINGS or (ending[0] == doubled and ending[1:] in _ENDINGS) for ending in endings)


def _strip_lines(raw: str) -> str:
    return "\n".join(line.rstrip() for line in raw.strip("\n").split("\n"))


# -- whole texts -------------------------------------------------------------------------------------


def statements(entries: Sequence[MemoryEntry]) -> list[int]:
    """Return the indices of what says something by itself; of headings, those with nothing under them."""
    found = []
    for n, entry in enumerate(entries):
        if entry.kind is EntryKind.RULE or not entry.text:
            continue
        if entry.kind is EntryKind.HEADING:
            below = entries[n + 1] if n + 1 < len(entries) else None
            if below is not None and (below.kind is not EntryKind.HEADING or below.level > entry.level):
                continue
        found.append(n)
    return found


def match_entries(old: Sequence[MemoryEntry], new: Sequence[MemoryEntry]) -> dict[int, int]:
    """Return for each old entry the new one that it lives on in: the same under the same heading first."""
    index = WordIndex(new)
    successors: dict[int, int] = {}
    for n, entry in enumerate(old):
        known = index.same(entry)
        if known is not None:
            successors[n] = known
            continue
        reading = analyze(entry)
        fitting = [m for m in index.candidates(reading) if analyzed_replaces(index.readings[m], reading)]
        if fitting:
            successors[n] = min(fitting, key=lambda m: _distance(entry, new[m]))
    return successors


def _distance(old: MemoryEntry, new: MemoryEntry) -> tuple[bool, bool, bool, int]:
    return (new.kind is not old.kind, not is_same(old, new), new.context != old.context, len(new.raw))


class WordIndex:
    """Finds the few entries that may hold all words of another one: names as they are, others by their beginnings."""

    def __init__(self, entries: Sequence[MemoryEntry]) -> None:
        self.readings = [analyze(entry) for entry in entries]
        self._same: dict[tuple[EntryKind, str, tuple[str, ...]], int] = {}
        self._by_word: defaultdict[str, set[int]] = defaultdict(set)
        self._by_raw: defaultdict[str, list[int]] = defaultdict(list)
        for n, reading in enumerate(self.readings):
            entry = reading.entry
            self._same.setdefault((entry.kind, entry.raw, entry.context), n)
            self._by_raw[entry.raw.strip()].append(n)
            for word in reading.have:
                self._by_word[word].add(n)
                self._by_word[f"{word[:3]} "].add(n)

    def same(self, entry: MemoryEntry) -> int | None:
        """Return the index of an identical entry under the same headings, or None."""
        return self._same.get((entry.kind, entry.raw, entry.context))

    def candidates(self, reading: AnalyzedEntry) -> list[int]:
        """Return the entries worth comparing, in their order."""
        own = reading.said
        if reading.entry.kind is EntryKind.FENCE or not own.words:
            return self._by_raw.get(reading.entry.raw.strip(), [])
        # The first word is often capitalised for no reason, and may be inflected.
        keys = [*own.exact[1:], *(f"{word[:3]} " for word in own.carrying or own.words)]
        return sorted(set.intersection(*(self._by_word.get(key, set()) for key in keys)))


def lost_entries(before: str, after: str) -> list[MemoryEntry]:
    """Return the entries of *before* that no entry of *after* replaces."""
    old = parse(before)
    successors = match_entries(old, parse(after))
    return [old[n] for n in statements(old) if n not in successors]
