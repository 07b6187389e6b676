"""Entry points by group, the installed version, and the form of the operator's commands."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from importlib.metadata import version as version_of
from pathlib import Path

_WITHOUT_GATEWAY = ("accept-loss", "import", "init", "restore", "store")  # commands for when none runs
_MAKEFILE = Path(__file__).parents[2] / "Makefile"  # of a checkout; a wheel has none

# Parlour is not published in a package registry: `pip install parlour` could install a stranger's package.
HOW_TO_INSTALL = (
    "run `make install` in Parlour's folder"
    if _MAKEFILE.exists()
    else "install what is missing beside Parlour (docs/install.md, From a wheel)"
)


@cache
def load_entry_points(group: str) -> EntryPoints:
    """Return the entry points of *group*, read once a process: a reading opens a file of every package there is."""
    return entry_points(group=group)


@cache
def package_version() -> str:
    """Return Parlour's own version, read once a process: a reading parses a page of metadata."""
    return version_of("parlour")


def in_container(environment: Mapping[str, str]) -> bool:
    """Return True if we run in a container: our image sets `container`, Docker and Podman leave a file."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return bool(environment.get("container")) or any(mark.exists() for mark in marks)


def operator_command(words: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the command line of `parlour` *words* for this installation: through compose in a container.

    In a source checkout that is `make init` and `make run`, as in its README, and otherwise the command in its venv.
    """
    # Our image says that it is one, and has no sources; a folder with sources may be in a container of somebody else.
    if _MAKEFILE.exists() and not environment.get("container"):
        if words in ("init", "run"):
            return f"make {words}"
        # Below the folder, and not in full: the page shows it to people who are not logged in.
        return f".venv/bin/parlour {words}" if (_MAKEFILE.parent / ".venv/bin/parlour").exists() else f"parlour {words}"
    if in_container(environment):
        if words == "run":
            return "docker compose up --detach"
        is_alone = words.startswith(_WITHOUT_GATEWAY)
        return f"docker compose {'run --rm' if is_alone else 'exec parlour'} parlour {words}"
    return f"parlour {words}"


def with_operator_commands(text: str) -> str:
    """Return *text* with each command in backticks, such as `parlour doctor`, as it is typed for this installation."""
    return re.sub("`parlour ([^`]+)`", lambda found: f"`{operator_command(found[1])}`", text)
