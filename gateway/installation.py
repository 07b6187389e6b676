"""Entry points by group, the installed version, and the form of the operator's commands."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoints, SelectableGroups, entry_points
from importlib.metadata import version as version_of
from pathlib import Path

_WITHOUT_GATEWAY = ("accept-loss", "import", "init", "mirror import", "restore", "store")  # commands for when none runs
_ROOT = Path(__file__).parents[1]
_COMMIT = re.compile("[0-9a-f]{7,40}")
_MAKEFILE = _ROOT / "Makefile"  # of a checkout; a wheel has none

# Parlour is not published in a package registry: `pip install parlour` could install a stranger's package.
HOW_TO_INSTALL = (
    "run `make install` in Parlour's folder"
    if _MAKEFILE.exists()
    else "install what is missing beside Parlour (docs/install.md, From a wheel)"
)


@cache
def load_entry_points(group: str) -> EntryPoints:
    """Return the entry points of *group*."""
    return _installed_entry_points().select(group=group)


@cache
def _installed_entry_points() -> SelectableGroups:
    # Once for all groups: a reading opens a file of every package, which took 7 ms for each of seven groups at a start.
    return entry_points()


@cache
def package_version() -> str:
    """Return Parlour's own version, read once a process: a reading parses a page of metadata."""
    return version_of("parlour")


@cache
def program_version() -> str:
    """Return the version with its commit, such as ``0.3.0.dev0+1a2b3c4d``, where the build or the checkout says it."""
    commit = _build_commit()
    return f"{package_version()}+{commit}" if commit else package_version()


def _build_commit() -> str:
    """Return the commit that an image or wheel was built of, or of the checkout that runs; "" if unknown."""
    if found := _COMMIT.fullmatch(os.environ.get("BUILD_COMMIT", "")):  # in our image
        return found[0][:8]
    for file in (_ROOT / "commit", _ROOT / ".git" / "HEAD"):
        with suppress(OSError, ValueError):
            text = file.read_text("ascii").strip()
            if text.startswith("ref: "):
                text = (_ROOT / ".git" / text.removeprefix("ref: ")).read_text("ascii").strip()
            if found := _COMMIT.fullmatch(text):
                return found[0][:8]
    return ""


def in_container(environment: Mapping[str, str]) -> bool:
    """Return True if we run in a container: our image sets `container`, Docker and Podman leave a file."""
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return bool(environment.get("container")) or any(mark.exists() for mark in marks)


def _compose_service(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return compose's command and our service: those of deploy/compose.scale.yml with a shared store."""
    if environment.get("PARLOUR_STORE__SHARED") == "true":
        return "docker compose --project-directory . -f deploy/compose.scale.yml", "parlour-1"
    return "docker compose", "parlour"


def operator_command(words: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the command line of `parlour` *words* for this installation: through compose or kubectl in a container.

    In a source checkout that is `make init` and `make run`, as in its README, and otherwise the command in its venv.
    """
    # Our image says that it is one, and has no sources; a folder with sources may be in a container of somebody else.
    if _MAKEFILE.exists() and not environment.get("container"):
        if words in ("init", "run"):
            return f"make {words}"
        # Below the folder, and not in full: the page shows it to people who are not logged in.
        return f".venv/bin/parlour {words}" if (_MAKEFILE.parent / ".venv/bin/parlour").exists() else f"parlour {words}"
    if in_container(environment):
        if "KUBERNETES_SERVICE_HOST" in environment:  # as in each pod; the names are those of deploy/k8s/parlour.yaml
            is_start = words == "run"
            return (
                "kubectl rollout restart deploy/parlour"
                if is_start
                else f"kubectl exec deploy/parlour -- parlour {words}"
            )
        compose, service = _compose_service(environment)
        if words == "run":
            return f"{compose} up --detach"
        is_alone = words.startswith(_WITHOUT_GATEWAY)
        return f"{compose} {f'run --rm {service}' if is_alone else f'exec {service} parlour'} {words}"
    return f"parlour {words}"


def ownership_hint(home: Path, uid: int, gid: int, environment: Mapping[str, str]) -> str:
    """Return the line to paste that gives everything in *home* to the user *uid*."""
    if in_container(environment):
        # The service has no capability at all, and root without these may neither look into 0700 nor give away.
        compose, service = _compose_service(environment)
        return (
            f"{compose} run --rm --user 0 --cap-add CHOWN --cap-add DAC_READ_SEARCH --entrypoint chown {service}"
            f" -R {uid}:{gid} {home}"
        )
    return f"sudo chown -R {uid}:{gid} {home}"


def with_operator_commands(text: str) -> str:
    """Return *text* with each command in backticks, such as `parlour doctor`, as it is typed for this installation."""
    return re.sub("`parlour ([^`]+)`", lambda found: f"`{operator_command(found[1])}`", text)
