"""What our own regular expressions cost on text that others control (docs/attacks.md, attack 84)."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from re import _constants as op  # type: ignore[attr-defined] # what `re` itself parses with
from re import _parser as parser  # type: ignore[attr-defined]
from types import FrameType, ModuleType
from typing import Any, TypeAlias

import pytest
import regex

from agent.memory.erasure import phrase_matcher, scope_files
from agent.memory.search import query, time_grammar
from agent.turns import turn
from gateway.text import markdown_blocks, redaction

Pattern: TypeAlias = re.Pattern[Any] | regex.Pattern[Any]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("agent", "channels", "gateway")
LENGTH = 100_000  # characters of what a pattern reads, unless its module reads less
LIMIT = 0.5  # seconds of CPU: a quadratic expression takes many seconds, a linear one a few milliseconds
HANGS = 20.0  # seconds of a loaded machine after which an expression is interrupted
FIRST, SOON = 1_000, 0.0007  # repetitions, and seconds: if these are done soon, so are more
EXAMPLES = 3  # texts that a pattern is made for
LONGEST_EXAMPLE = 40
PIECES: tuple[str, ...] = (
    "a",
    " ",
    "(",
    "[a",
    "<",
    "`",
    "a.",
    "a-",
    "@a",
    "1",
    "/a",
    "a:",
    "\n",
    "- a\n",
    "a ",
    "%2",
    "_",
    "*",
    '"',
    "'",
)
PIECES += (
    "{",
    '"a',
    "=a",
    "https://",
    "aB3",
    "[a](",
    "![",
    "<@",
    "a@b.",
    "\t",
    "\r\n",
    "\\",
    "|",
    "~",
    "$",
    "。",
    "é\u0301",
)

# What bounds the text that the patterns of a module read; None = nobody but the operator writes it.
BOUNDS: Mapping[str, int | None] = {
    "agent/llm/provider_errors.py": 8_000,  # MOST_CHARS
    "agent/llm/provider_refusals.py": 8_000,
    "agent/llm/answer_text.py": 20_000,  # _MOST_CHARS
    "agent/memory/conversations.py": 4_000,  # _LONGEST_TEXT
    "agent/memory/search/time_grammar.py": 30_000,  # LONGEST_QUERY, as encoded tokens
    "channels/kit/__init__.py": None,
    "gateway/settings_writer.py": None,
    "gateway/settings/channel_blocks.py": None,
}
TABLES = {"agent/llm/provider_refusals.py": {"_FIELD_PATTERNS": "fullmatch"}}  # how the patterns of a table are used
WINDOWS = {"agent/llm/answer_text.py": {"_END_MARKS": 64}}  # characters at the end, of a longer text

Found: TypeAlias = tuple[str, Pattern, frozenset[str]]  # where, what, and the methods that are used


@cache
def sources() -> Mapping[str, ast.Module]:
    """Return the program's modules that import `re` or `regex`, by their path."""
    paths = chain.from_iterable((ROOT / package).rglob("*.py") for package in PACKAGES)
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    return {path: ast.parse(text) for path, text in texts.items() if re.search(r"import .*\b(re|regex)\b", text)}


def modules() -> Iterator[tuple[str, ModuleType]]:
    """Yield the program's modules with their paths."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                module = importlib.import_module(found.name)
                yield str(Path(str(module.__file__)).relative_to(ROOT)), module


def compiled() -> Iterator[Found]:
    """Yield every pattern that a module holds: by a name, or in a table or a class."""
    for path, module in modules():
        source = inspect.getsource(module)
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__:
                value = dict(vars(value))  # noqa: PLW2901 - its own patterns
            for n, pattern in enumerate(patterns_in(value)):
                used = rf"\b{name}\.(search|match|fullmatch|sub|split|findall|finditer)\b"
                usual = TABLES.get(path, {}).get(name, "search")
                methods = frozenset(re.findall(used, source)) or frozenset({usual})
                yield f"{path}:{name}[{n}]", pattern, methods


def patterns_in(value: object, depth: int = 0) -> Iterator[Pattern]:
    """Yield the patterns in a value."""
    if isinstance(value, re.Pattern | regex.Pattern):
        yield value
    elif depth < 4 and isinstance(value, Mapping):
        for each in value.values():
            yield from patterns_in(each, depth + 1)
    elif depth < 4 and isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from patterns_in(each, depth + 1)
    elif depth < 4 and is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from patterns_in(getattr(value, each.name, None), depth + 1)


def written_in_place() -> Iterator[Found]:
    """Yield the patterns that a function uses without a name."""
    for path, tree in sources().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re" | "regex" as library), attr=method),
                    args=[ast.Constant(value=text), *_],
                ) if method not in ("compile", "escape"):
                    yield f"{path}:{node.lineno}", (re if library == "re" else regex).compile(text), frozenset({method})


def built() -> Iterator[Found]:
    """Yield the patterns that functions build at run time, of texts that others could choose."""
    words = "aa a-a. b"
    made: Mapping[str, object] = {
        "agent/turns/turn.py": [
            re.compile(f"{turn._ADDRESS_BEGINS}(?:{re.escape('a.a/' * 9)}){turn._ADDRESS_ENDS}", re.IGNORECASE)
        ],
        "agent/memory/erasure/phrase_matcher.py": [
            *(phrase_matcher._pattern(words, each) for each in ("utf-8", "utf-16-le")),
            phrase_matcher.PhraseMatcher(f'"{words}"')._literal_pattern,
            *phrase_matcher.PhraseMatcher(words)._split_patterns,
            phrase_matcher.PhraseMatcher(words)._exact_pattern or re.compile(""),
        ],
        "agent/memory/erasure/scope_files.py": [
            cell.cell_contents for cell in getattr(scope_files.build_id_filter({"aa", "a1"}), "__closure__", None) or ()
        ],
        "agent/memory/search/query.py": [query._any(words, "a")],
        "agent/memory/search/time_grammar.py": [pattern for pattern, *_ in time_grammar._compiled()],
        "gateway/text/markdown_blocks.py": [
            *(markdown_blocks._closer(mark, length) for mark in "`~" for length in (3, 40)),
            *map(markdown_blocks._dedent, range(4)),
        ],
        "gateway/text/redaction.py": [redaction._any_of([words, "a" * 40, "sk-aaaa"])],
    }
    for path, values in made.items():
        found = list(patterns_in(values))
        assert found, path
        for n, pattern in enumerate(found):
            yield f"{path}:run time[{n}]", pattern, frozenset({"finditer"})


RUN_TIME = {  # functions that compile a pattern, and what they make it of
    "agent/turns/turn.py": "escaped addresses between two fixed sides",
    "agent/llm/openai_model.py": "an escaped name of a model, in the operator's table",
    "agent/memory/erasure/phrase_matcher.py": "the escaped words to erase, and their letters",
    "agent/memory/erasure/scope_files.py": "escaped ids",
    "agent/memory/search/query.py": "a fixed list of words",
    "agent/memory/search/time_grammar.py": "fixed patterns of classes",
    "agent/tools/tool.py": "the escaped name of a file, or of a place in it",
    "channels/kit/__init__.py": "shapes of secrets in the operator's settings",
    "gateway/i18n/__init__.py": "the program's own commands, in its own sentences",
    "gateway/settings/channel_blocks.py": "a platform's shape of an id, in the operator's settings",
    "gateway/text/markdown_blocks.py": "the mark of a fence, and its length",
    "gateway/text/redaction.py": "escaped secrets",
}


def functions_that_compile() -> set[str]:
    """Return the paths of modules with a function that compiles a pattern, or uses one that is no constant."""
    found = set()
    for path, tree in sources().items():
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for node in chain.from_iterable(map(ast.walk, functions)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re" | "regex"), attr=name), args=[pattern, *_]):
                    if name == "compile" or (name != "escape" and not isinstance(pattern, ast.Constant)):
                        found.add(path)
    return found


def test_every_pattern_of_run_time_is_known() -> None:
    """A new one is entered in RUN_TIME, and in `built` if others choose its text."""
    assert functions_that_compile() == RUN_TIME.keys()


# -- texts ---------------------------------------------------------------------------------------

_KNOWN_CLASSES = {"L": "a", "Lu": "A", "N": "1", "M": "\u0301", "Mn": "\u0301", "Cf": "\u200b", "So": "☺", "Han": "中"}


class ExampleMaker:
    """Makes texts that a pattern matches, as far as its tree says so: they need not match, but lead far into it."""

    def __init__(self, pattern: str) -> None:
        self._random = random.Random(repr(pattern))  # noqa: S311 - the same texts each time
        plain = re.sub(r"\\p\{(\w+)(=\w+)?\}", lambda each: _KNOWN_CLASSES.get(each[1], "a"), pattern)
        plain = re.sub(r"\\P\{\w+\}|\\X|\(\?[rV01b]+\)", "", plain)
        self._tree = parser.parse(plain)

    def make(self) -> str:
        """Return one."""
        return self._of(self._tree)[:LONGEST_EXAMPLE]

    def _of(self, tree: Any) -> str:
        return "".join(self._part(name, value) for name, value in tree)

    def _part(self, name: Any, value: Any) -> str:
        if name is op.LITERAL:
            return chr(value)
        if name in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, inner = value
            times = self._random.randint(least, max(least, min(int(most), least + 3)))
            return "".join(self._of(inner) for _ in range(min(times, LONGEST_EXAMPLE)))
        if name is op.BRANCH:
            return self._of(self._random.choice(value[1]))
        if name is op.SUBPATTERN:
            return self._of(value[3])
        if name is op.ATOMIC_GROUP:
            return self._of(value)
        if name is op.ASSERT:
            return self._of(value[1])
        if name is op.IN:
            return self._of_class(value)
        return {op.NOT_LITERAL: "a", op.ANY: "a", op.CATEGORY: self._of_category(value)}.get(name, "")

    def _of_class(self, items: Any) -> str:
        shown = [each for each in items if each[0] is not op.NEGATE]
        signs = [chr(value[0]) if name is op.RANGE else self._part(name, value) for name, value in shown]
        if items[0][0] is op.NEGATE:
            return next(each for each in "a1 -x\n" if each not in signs)
        return self._random.choice(signs)

    def _of_category(self, value: Any) -> str:
        name = str(value)
        is_not = "_NOT_" in name
        return (
            " "
            if ("SPACE" in name) != is_not and "WORD" not in name
            else "1"
            if "DIGIT" in name and not is_not
            else "a"
        )


@dataclass(frozen=True, slots=True)
class HostileText:
    """A text of any length: *piece* again and again, between two others."""

    before: str
    piece: str
    after: str = ""

    def make(self, length: int) -> str:
        """Return it with *length* characters of the piece."""
        return f"{self.before}{(self.piece * (length // len(self.piece) + 1))[:length]}{self.after}"


def hostile_texts(pattern: str | bytes) -> Iterator[HostileText]:
    """Yield beginnings of what *pattern* matches, again and again, and with their last sign for ever."""
    pieces, tails = dict.fromkeys(PIECES), dict[str, None]()
    try:
        maker = ExampleMaker(pattern if isinstance(pattern, str) else pattern.decode("latin-1"))
        examples = [maker.make() for _ in range(EXAMPLES)]
    except re.error:  # only `regex` reads it
        examples = []
    for example in examples:
        beginnings = [example[:end] for end in range(1, len(example) + 1)]
        pieces |= dict.fromkeys(beginnings[::6] + beginnings[-1:])
        tails |= dict.fromkeys(each for each in beginnings if each[-1:] != each[-2:-1])
    yield from (HostileText("", piece) for piece in pieces)
    yield from (HostileText(tail, tail[-1], "!") for tail in tails)


# -- the test ------------------------------------------------------------------------------------


class Hangs(Exception):
    """An expression was interrupted."""


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Raise Hangs."""
    raise Hangs


def seconds_of(pattern: Pattern, method: str, text: str) -> float:
    """Return the seconds of CPU that *method* takes to go through *text*."""
    given: Any = text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text
    options: dict[str, Any] = {"timeout": HANGS} if isinstance(pattern, regex.Pattern) else {}
    begun = time.thread_time()
    try:
        signal.setitimer(signal.ITIMER_REAL, 2 * HANGS)
        apply(pattern, method, given, options)
    except (Hangs, TimeoutError):
        return HANGS
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return time.thread_time() - begun


def apply(pattern: Any, method: str, text: Any, options: Mapping[str, Any]) -> None:
    """Use *pattern* on *text* to the end."""
    match method:
        case "sub":
            pattern.sub(text[:0], text, **options)
        case "finditer" | "findall" | "split":
            for _ in pattern.finditer(text, **options):
                pass
        case _:
            getattr(pattern, method)(text, **options)


def seconds_until_done(pattern: Pattern, methods: frozenset[str], hostile: HostileText, length: int) -> float:
    """Return the seconds of CPU that the slowest of *methods* takes for *length* characters of *hostile*.

    They are measured where an eighth of the text, and a sixteenth, do not show that it takes less than LIMIT.
    """

    def measure(characters: int) -> float:
        text = hostile.make(characters)
        return max(seconds_of(pattern, each, text) for each in methods)

    if (soon := measure(min(length, FIRST * len(hostile.piece)))) < SOON:
        return soon
    if (sixteenth := measure(length // 16)) > LIMIT:
        return sixteenth
    eighth = measure(length // 8)
    expected = eighth * max(eighth / sixteenth, 2.0) ** 3  # eight times as much is three doublings
    return expected if expected < LIMIT / 2 else measure(length)


def length_of(where: str) -> int:
    """Return how many characters the pattern at *where* reads; 0 if only the operator writes them."""
    path, _, name = where.partition(":")
    window = WINDOWS.get(path, {}).get(name.partition("[")[0])
    return window or BOUNDS.get(path, LENGTH) or 0


@pytest.mark.parametrize("find", [compiled, written_in_place, built], ids=["held", "in place", "run time"])
def test_no_pattern_costs_more_than_the_length_of_its_text(find: Callable[[], Iterator[Found]]) -> None:
    """Each of our expressions, used as its module uses it, is done with 100,000 characters of its beginnings soon."""
    earlier = signal.signal(signal.SIGALRM, interrupt)
    slow, count = list[str](), 0
    try:
        for where, pattern, methods in find():
            count += 1
            if not (length := length_of(where)):
                continue
            for hostile in hostile_texts(pattern.pattern):
                if (worst := seconds_until_done(pattern, methods, hostile, length)) > LIMIT:
                    slow.append(f"{where} {pattern.pattern!r:.60} on {hostile}: {worst:.1f} s")
                    break
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert not slow, "\n".join(slow)
    assert count >= {compiled: 250, written_in_place: 20, built: 15}[find]
