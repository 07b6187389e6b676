"""Whatever somebody wrote in parlour.yaml, init's merge keeps their words and their comments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UserError
from gateway.settings.setting_names import snake
from gateway.settings.sources import parse_yaml
from gateway.settings_writer import SettingChanges, merge_settings_text

FILE = Path("/home/parlour.yaml")
NAMES = st.sampled_from(["llm", "model", "channels", "telegram", "allowFrom", "web", "port", "owners", "x-y"])
_TEXTS = ["", "'it''s'", '"a # b"', "ä 😀", ">-\n@  folded\n@  text", "|\n@  kept\n@    as it is"]
_WORDS = [
    "0123",
    "off",
    "yes",
    "1e3",
    "1_000",
    "0x1F",
    "12:30",
    "2026-11-21",
    "null",
    "~",
    "[a,'b']",
    "[]",
    "{}",
    "{p:_1}",
]
SCALARS = st.sampled_from([*_TEXTS, *(word.replace(":_", ": ") for word in _WORDS)])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return a document of nested groups, lists and scalars, with comments wherever one can stand."""
    step = draw(st.sampled_from([2, 4]))
    number = 0

    def comment(indent: str) -> str:
        nonlocal number
        if not draw(st.booleans()):
            return ""
        number += 1
        return f"{indent}# c{number}\n"

    def group(depth: int) -> str:
        indent = " " * step * depth
        text = ""
        for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
            text += comment(indent)
            kind = draw(st.sampled_from(["scalar", "list", "group"] if depth < 3 else ["scalar"]))
            if kind == "group":
                text += f"{indent}{name}:\n{group(depth + 1)}"
            elif kind == "list":
                text += f"{indent}{name}:\n{comment(indent)}{indent}  - one\n{comment(indent)}{indent}  - '0501'\n"
            else:
                value = draw(SCALARS)
                tail = f"   {comment('').strip()}".rstrip() if "\n" not in value else ""
                text += f"{indent}{name}: {value}".rstrip().replace("@", indent) + f"{tail}\n"
        return text

    return f"{comment('')}{group(0)}{comment('')}"


def at(tree: Any, path: tuple[str, ...]) -> Any:
    """Return what stands at *path*."""
    for name in path:
        tree = tree[name]
    return tree


@given(documents())
def test_comments_and_values_stay(text: str) -> None:
    """Every comment is there afterwards, in order; every value but the changed ones is what it was."""
    changes = SettingChanges(plain={("timezone",): "Europe/Berlin", ("chats", "telegram:1", "model"): "openai/x"})
    after = merge_settings_text(FILE, text, changes, {})
    assert re.findall(r"# c\d+", after) == re.findall(r"# c\d+", text)
    expected = parse_yaml(text)
    assert isinstance(expected, dict)
    found = parse_yaml(after)
    assert isinstance(found, dict)
    assert at(found, ("timezone",)) == "Europe/Berlin"
    assert at(found, ("chats", "telegram:1", "model")) == "openai/x"
    assert {name: found[name] for name in expected} == expected
    assert merge_settings_text(FILE, after, changes, {}) == after


@given(documents(), st.data())
def test_a_removed_setting_takes_its_lines_alone(text: str, data: st.DataObject) -> None:
    """Every comment that has a line to itself stays, every other line is untouched, every other value what it was."""
    tree = parse_yaml(text)
    path: tuple[str, ...] = ()
    while isinstance(tree, dict) and tree and (not path or data.draw(st.booleans())):
        path = (*path, data.draw(st.sampled_from(sorted(tree))))
        tree = tree[path[-1]]
    after = merge_settings_text(FILE, text, SettingChanges(plain={tuple(map(snake, path)): None}), {})
    assert re.findall(r"^ *# c\d+", after, re.MULTILINE) == re.findall(r"^ *# c\d+", text, re.MULTILINE)
    kept = iter(text.splitlines())
    assert all(line in kept for line in after.splitlines())
    expected: Any = parse_yaml(text)
    groups = [expected]
    for name in path[:-1]:
        groups.append(groups[-1][name])
    for group, name in zip(reversed(groups), reversed(path), strict=True):
        del group[name]
        if group:
            break
    assert (parse_yaml(after) or {}) == expected


REMOVALS = [
    ('a: 1\nchats:\n  "telegram:42":\n    soul: |\n      # You', "soul", "a: 1\n"),
    ('chats:\n  # ann\n  "telegram:42":\n    language: de  # hers\n    model: x\nweb: {}\n', "language",
     'chats:\n  # ann\n  "telegram:42":\n    model: x\nweb: {}\n'),
    ('a: 1\nchats:\n  "telegram:42":\n    # why\n    language: de\n# next\nb: 2\n', "language",
     "a: 1\n    # why\n# next\nb: 2\n"),
    ('# all\nchats: {"telegram:42": {language: de, model: x}}\nb: 2\n', "language",
     '# all\nchats: {"telegram:42": {model: x}}\nb: 2\n'),
    ('chats:\n  "telegram:42":\n    caps:\n      chatTurns: 5\n    soul: |\n      # You\n\n      are\nb: 2\n', "soul",
     'chats:\n  "telegram:42":\n    caps:\n      chatTurns: 5\nb: 2\n'),
    ('chats:\n  "telegram:42":\n    caps:\n      chatTurns: 5\n    tools:\n      deny:\n        - a\n        - b\n',
     "tools.deny", 'chats:\n  "telegram:42":\n    caps:\n      chatTurns: 5\n'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "expected"), REMOVALS, ids=["end", "line", "last", "braces", "literal", "list"]
)
def test_a_setting_of_a_chat_is_removed(text: str, name: str, expected: str) -> None:
    """With the groups that are empty without it; a comment beside the value goes with it."""
    changes = SettingChanges(plain={("chats", "telegram:42", *name.split(".")): None})
    assert merge_settings_text(FILE, text, changes, {}) == expected
    with pytest.raises(UserError, match="not in the settings file"):
        merge_settings_text(FILE, expected, changes, {})
