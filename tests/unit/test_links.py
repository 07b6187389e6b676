"""The dead-link check of `make check` finds what is dead and leaves the rest alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import links

GOOD_PAGE = """# One & two

See [below](#one--two-1), [there](docs/b.md#a-heading), [the folder](docs) and `[no](link.md)`.

```
[not](here.md)
```

# One & two
"""
DEAD_LINKS = [
    ("[x](missing.md)", "a.md:1: missing.md: no such file"),
    ("text\n\nmore [x](b.md#nowhere)", "a.md:3: b.md#nowhere: no such heading in b.md"),
    ("[x](#nowhere)", "a.md:1: #nowhere: no such heading in a.md"),
    ("[x](../secret.md)", "a.md:1: ../secret.md: leads out of the repository"),
    ("![x](gone.png)", "a.md:1: gone.png: no such file"),
    ("one\n[x][ref]\n\n[ref]: gone.md", "a.md:1: gone.md: no such file"),
    ('<a href="gone.md">x</a>', "a.md:1: gone.md: no such file"),
]


def checked(root: Path, pages: dict[str, str]) -> list[str]:
    """Write *pages* under *root* and return what the check says of them."""
    for name, text in pages.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return list(links.dead(root, frozenset(pages)))


def test_links_that_lead_somewhere_are_left_alone(tmp_path: Path) -> None:
    """Files, folders, headings (repeated ones too) and foreign pages are no dead links; code is not read."""
    pages = {
        "a.md": GOOD_PAGE,
        "docs/b.md": "## A *heading*\n\n[up](../a.md) <https://example.org> [abs](/docs/b.md)\n",
    }
    assert checked(tmp_path, pages) == []


@pytest.mark.parametrize(("text", "line"), DEAD_LINKS)
def test_dead_links_are_named_with_file_and_line(tmp_path: Path, text: str, line: str) -> None:
    """A link that leads nowhere is told with the place where it stands."""
    assert checked(tmp_path, {"a.md": text, "b.md": "# B\n"}) == [line]
