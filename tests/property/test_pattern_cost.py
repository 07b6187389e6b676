"""What our own regular expressions cost on text that others control (docs/attacks.md, attack 84)."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Iterator

_LENGTH = 30_000  # characters: a quadratic expression takes a second and more, a linear one a few milliseconds
_LIMIT = 0.5  # seconds of CPU
_HOSTILE = [
    (piece * _LENGTH)[:_LENGTH] + end
    for piece in ("a", " ", "(", "[a", "<", "`", "a.", "a-", "@a", "1", "/a", "a:", "\n", "- a\n", "a ", "%2", "_", "*")
    for end in ("", "!")
]
_HOSTILE += [(piece * _LENGTH)[:_LENGTH] for piece in ("{", '"a', "=a", "https://", "aB3", "[a](", "![", "<@", "a@b.")]


def used_patterns() -> Iterator[tuple[str, re.Pattern[str], str]]:
    """Yield each pattern that a module of ours names, with each method that the module calls on it."""
    for package in ("agent", "channels", "gateway"):
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if found.name.endswith("__main__"):
                continue
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                    calls = rf"\b{name}\.(search|match|fullmatch|sub|split|findall|finditer)\b"
                    for method in sorted(set(re.findall(calls, inspect.getsource(module)))):
                        yield f"{module.__name__}.{name}.{method}", value, method


def test_no_pattern_costs_more_than_the_length_of_its_text() -> None:
    """Each of our expressions, used as its module uses it, is done with 30,000 repeating characters in a moment."""
    slow = list[str]()
    patterns = list(used_patterns())
    for name, pattern, method in patterns:
        for text in _HOSTILE:
            begun = time.process_time()
            apply(pattern, method, text)
            if time.process_time() - begun > _LIMIT:
                slow.append(f"{name} on {text[:6]!r}")
                break
    assert not slow
    assert len(patterns) > 100


def apply(pattern: re.Pattern[str], method: str, text: str) -> None:
    """Use *pattern* on *text* to the end."""
    match method:
        case "sub":
            pattern.sub("", text)
        case "finditer":
            for _ in pattern.finditer(text):
                pass
        case _:
            getattr(pattern, method)(text)
