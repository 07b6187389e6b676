"""Gateway and agent know no platform: what they need to know of one, its plugin declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLATFORM = re.compile(r"(?:telegram|slack|discord|pocket)", re.IGNORECASE)
LOCAL = frozenset({"web", "console"})  # common words: they count as whole strings only

# Other bots' files name their platforms; the two channels that every installation has are a default of the settings;
# `parlour web` is a command, "web" a kind of tools, and the operators' page is at /console.
NAMES_PLATFORMS = ("agent/importers/",)
LOCAL_NAMES = {
    ("gateway/settings/channel_blocks.py", "web"),
    ("gateway/settings/channel_blocks.py", "console"),
    ("gateway/cli.py", "web"),
    ("gateway/cli.py", "console"),
    ("agent/tools/tool.py", "web"),
    ("agent/web/search_engines.py", "web"),
    ("agent/web/web_tools.py", "web"),
    ("gateway/health/network_checks.py", "web"),
    ("gateway/health/home_checks.py", "web"),
    ("gateway/health/doctor.py", "web"),
    ("gateway/settings/load.py", "web"),
    ("agent/tools/toolbox.py", "web"),
}


def texts(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is a string, of names and of strings without blanks; docstrings are left out."""
    nodes = list(ast.walk(tree))
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if not re.search(r"\s", node.value):
                yield node.lineno, node.value, True
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id, False
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr, False
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, False
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", False
        elif isinstance(node, ast.alias | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name, False


def platform_names(path: str, source: str) -> list[str]:
    """Return the places of *source* that name a platform."""
    return [
        f"{path}:{line}: {text}"
        for line, text, is_string in texts(ast.parse(source))
        if PLATFORM.search(text) or (is_string and text in LOCAL and (path, text) not in LOCAL_NAMES)
    ]


def test_gateway_and_agent_name_no_platform() -> None:
    """No name and no string of one word in the two packages names a platform or a platform of the tests."""
    found = [
        place
        for package in ("gateway", "agent")
        for file in sorted((ROOT / package).rglob("*.py"))
        if not (path := file.relative_to(ROOT).as_posix()).startswith(NAMES_PLATFORMS)
        for place in platform_names(path, file.read_text("utf-8"))
    ]
    assert not found, "declare it in PlatformTraits:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'if kind == "telegram": ...',
        'KINDS = frozenset({"web"})',
        "from channels.slack import plugin",
        'name = f"slack%3a{user}"',
        "def is_discord(kind: str) -> bool: ...",
        'key.chat.startswith("pocket:")',
    ],
)
def test_a_platform_that_comes_back_is_found(source: str) -> None:
    """Comparisons, sets, imports, parts of f-strings and names of functions are all seen."""
    assert platform_names("gateway/app/new.py", source)


def test_prose_may_name_platforms() -> None:
    """A docstring and a sentence are for readers."""
    assert not platform_names("gateway/new.py", '"""As on Slack."""\nraise ValueError("write telegram:42 or so")')
