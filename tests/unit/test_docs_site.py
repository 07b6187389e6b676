"""The documentation as a site: built from the pages as they are, whole, and without a request to anybody else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: a dead link or anchor, or a page outside the navigation, fails."""
    target = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target))
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)  # noqa: S603
    assert run.returncode == 0, run.stderr
    return target


def test_every_page_and_every_decision_is_in_the_site(site: Path) -> None:
    """README is the first page, and nothing of docs/ is left out."""
    built = {str(page.relative_to(site).with_suffix("")) for page in site.rglob("*.html")}
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert built == pages | {"index", "changelog", "runbook", "adr/index", "404"}


def test_a_browser_that_reads_it_asks_nobody_else(site: Path) -> None:
    """No font, script, style or picture comes from another host; links that people follow may."""
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\ssrc=\"?(?:https?:)?//|<link\b[^>]*\shref=\"?(?:https?:)?//",
        re.IGNORECASE,
    )
    assert [page.name for page in site.rglob("*.html") if loads.search(page.read_text("utf-8"))] == []
    imports = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", re.IGNORECASE)
    assert [style.name for style in site.rglob("*.css") if imports.search(style.read_text("utf-8"))] == []


def test_links_lead_to_pages_and_files_of_the_site(site: Path) -> None:
    """What GitHub resolves in the repository, the site has under its own names; the source is named without a link."""
    install = (site / "install.html").read_text("utf-8")
    assert 'href="runbook.html#with-systemd"' in install
    assert 'href="adr/0094-names-in-the-wheel.html"' in install
    models = (site / "local-models.html").read_text("utf-8")
    assert 'href="deploy/compose.ollama.yml"' in models
    assert (site / "deploy/compose.ollama.yml").read_bytes() == (ROOT / "deploy/compose.ollama.yml").read_bytes()
    for page in ("extending.html", "adding-a-channel.html"):
        assert not re.search(r'href="[^"]*\.(?:py|toml)"', (site / page).read_text("utf-8"))
    assert not [page.name for page in site.rglob("*.html") if 'href="../gateway' in page.read_text("utf-8")]
