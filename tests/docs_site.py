"""MkDocs hooks: the pages as they are on GitHub become a site (mkdocs.yml).

README, CHANGELOG and the runbook are pages too, and each decision is listed. Links lead to pages and to files of
deploy/; what is only in the repository is named without a link. Anchors are those of GitHub.

MkDocs has had no release since 2024, and Material for it ends in May 2027. Zensical, by the same people, reads
mkdocs.yml but not yet hooks. Pages without extensions in their text keep that move small.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.links import slug

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "deploy/RUNBOOK.md": "runbook.md"}
_DECISIONS = "adr/index.md"
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`(?!\])", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings GitHub's anchors, and list every decision."""
    config.mdx_configs["toc"]["slugify"] = lambda text, _separator: slug(text)
    (decisions,) = (section["Decisions"] for section in config.nav or () if "Decisions" in section)
    decisions += [_DECISIONS, *(f"adr/{path.name}" for path in _decisions())]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, the list of decisions, and the files that pages link to."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    rows = (f"- [{_title(path)}]({path.name})" for path in _decisions())
    files.append(File.generated(config, _DECISIONS, content="# Decisions\n\n" + "\n".join(rows)))
    for path in sorted((ROOT / "deploy").rglob("*")):
        if _is_served(path):
            files.append(File.generated(config, str(path.relative_to(ROOT)), content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with its links leading to where the site has what they name."""
    own = page.file.src_uri
    source = next((name for name, uri in ELSEWHERE.items() if uri == own), f"docs/{own}")
    parts, last = [], 0
    for code in _CODE.finditer(markdown):  # what is shown as code stays as it is
        parts += [_relink(markdown[last : code.start()], source, own), code[0]]
        last = code.end()
    return "".join((*parts, _relink(markdown[last:], source, own)))


def _relink(text: str, source: str, own: str) -> str:
    def replace(link: re.Match[str]) -> str:
        path, _, anchor = link["target"].partition("#")
        if not path or ":" in path:
            return link[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        uri = _uri(there)
        if not uri and (ROOT / there).exists():
            return link["text"]
        target = posixpath.relpath(uri or path, posixpath.dirname(own) or ".")
        return f"{link['image']}[{link['text']}]({target}{'#' * bool(anchor)}{anchor})"

    return _LINK.sub(replace, text)


def _uri(path: str) -> str:
    """Return the site's name of a file of the repository, "" if it has none."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path == "docs/adr":
        return _DECISIONS
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.startswith("deploy/") and _is_served(ROOT / path) else ""


def _is_served(path: Path) -> bool:
    return path.is_file() and path.suffix in {".yml", ".yaml", ".conf", ".json", ""}


def _decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "adr").glob("*.md"))


def _title(path: Path) -> str:
    return path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
