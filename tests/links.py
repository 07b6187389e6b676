"""Dead links: every relative link and anchor in every Markdown file of the repository must lead somewhere.

`make check` runs it. It prints ``file:line: link: what is wrong`` for each dead one and exits 1.
Links with a scheme are left alone: whether a foreign page stands is not ours to promise.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_HTML_LINK = re.compile(r"""<(?:a|img)\s[^>]*?(?:href|src)\s*=\s*["']([^"']+)["']""", re.IGNORECASE)
_HTML_ANCHOR = re.compile(r"""<[a-z]+\s[^>]*?(?:id|name)\s*=\s*["']([^"']+)["']""", re.IGNORECASE)
_NOT_IN_A_SLUG = re.compile(r"[^\w\- ]")


@dataclass(frozen=True)
class PageLink:
    """A link as written, and the line it stands on."""

    line: int
    target: str


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return _NOT_IN_A_SLUG.sub("", heading.strip().lower()).replace(" ", "-")


@dataclass
class MarkdownPage:
    """One Markdown file, parsed once."""

    text: str
    _lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._lines = self.text.splitlines()

    @cached_property
    def _tokens(self) -> list[Token]:
        return MarkdownIt("commonmark").enable("table").parse(self.text)

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Every anchor of the page; a repeated heading gets -1, -2, …, as on GitHub."""
        found: set[str] = set()
        seen: dict[str, int] = {}
        for before, token in zip(self._tokens, self._tokens[1:], strict=False):
            if before.type == "heading_open":
                name = slug("".join(child.content for child in token.children or () if child.type != "html_inline"))
                count = seen.get(name, 0)
                seen[name] = count + 1
                found.add(f"{name}-{count}" if count else name)
            found.update(_HTML_ANCHOR.findall(token.content))
        return frozenset(found)

    def links(self) -> Iterator[PageLink]:
        """Yield every link and picture of the page; code is not read."""
        at = (0, len(self._lines))
        for token in self._tokens:
            at = (token.map[0], token.map[1]) if token.map else at
            if token.type == "html_block":
                yield from (PageLink(self._line_of(target, at), target) for target in _HTML_LINK.findall(token.content))
            for child in token.children or ():
                for target in _targets(child):
                    yield PageLink(self._line_of(target, at), target)

    def _line_of(self, target: str, at: tuple[int, int]) -> int:
        """The first line of the block that shows the target; reference links show it elsewhere: the block's first."""
        for number in range(*at):
            if target in self._lines[number] or unquote(target) in self._lines[number]:
                return number + 1
        return at[0] + 1


def _targets(token: Token) -> list[str]:
    if token.type == "html_inline":
        return _HTML_LINK.findall(token.content)
    attribute = {"link_open": "href", "image": "src"}.get(token.type)
    return [str(token.attrs[attribute])] if attribute else []


def tracked(root: Path) -> frozenset[str]:
    """Return the repository's files by their path from *root*: what git tracks, and what it would on the next add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout  # noqa: S603 -- a fixed command
    return frozenset(name for name in listing.decode().split("\0") if name and (root / name).exists())


def resolve(page: PurePosixPath, path: str) -> str | None:
    """Return where *path*, written on *page*, leads from the root; None when it leads out of the repository."""
    steps = [] if path.startswith("/") else list(page.parent.parts)
    for step in PurePosixPath(path.lstrip("/")).parts:
        if step != "..":
            steps.append(step)
        elif steps:
            steps.pop()
        else:
            return None
    return "/".join(steps)


def dead(root: Path, files: frozenset[str]) -> Iterator[str]:
    """Yield one line for each dead link in the Markdown files among *files*."""
    pages = {name: MarkdownPage((root / name).read_text("utf-8")) for name in sorted(files) if name.endswith(".md")}
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    for name, page in pages.items():
        for link in page.links():
            if _SCHEME.match(link.target) or link.target.startswith("//"):
                continue
            path, _, anchor = unquote(link.target).partition("#")
            goal = resolve(PurePosixPath(name), path) if path else name
            if goal is None:
                yield f"{name}:{link.line}: {link.target}: leads out of the repository"
            elif goal not in files and goal not in folders and goal:
                yield f"{name}:{link.line}: {link.target}: no such file"
            elif anchor and goal in pages and anchor not in pages[goal].anchors:
                yield f"{name}:{link.line}: {link.target}: no such heading in {goal}"


def main(root: Path) -> int:
    """Print the dead links under *root*; return 1 when there is one."""
    found = list(dead(root, tracked(root)))
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
