"""`parlour upgrade`: a new program is tried on a copy of the home; then, installed from a wheel, it can take over.

The trial and the upgrade use the same bytes: the trial installs the wheel beside a copy of this environment's
packages, made of hard links, and the two folders then change places in one call of the kernel. Going back is the same
exchange. So a kill at any step leaves one of two whole programs in place, and the other one beside it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from gateway.commands.operation_commands import call_operation
from gateway.errors import UserError
from gateway.home import Home, is_held, schema_of
from gateway.installation import program_version
from gateway.settings import load_settings
from gateway.settings.sources import FILE_NAMES, HOME, SECRETS
from gateway.store.closed_store import read_store

REPLAYED = 100  # newest turns
_INSTALL_WITHIN = 1_800  # seconds
_STEP_WITHIN = 600
_POLL = 2.0  # seconds between two looks at the new program
_ANSWERS_WITHIN = 90  # seconds, of a start as well
_GONE_AFTER = 15  # seconds without a process on the home; systemd starts another after five
_QUEUE_LIMIT = 60  # seconds that the oldest message may wait, where none waited that long before
_TRIAL = "parlour-upgrade-"
_TAIL = 15  # lines of the output of a step that failed
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
NO_GATEWAY, NOTHING_TO_REPLAY = 3, 4  # exit codes of `parlour ask` and `parlour replay`
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class TrialReport:
    """How a new program did on a copy of the home."""

    version: str
    schema_before: str
    schema_after: str
    errors: tuple[str, ...]  # of its doctor, that ours does not find
    replayed: int
    skipped: int  # turns with nothing to run again: commands, and what retention or an erasure has removed
    different: Mapping[str, int]  # turns by what differs: prompt, decisions, parts …
    failures: Mapping[str, str]  # why a turn could not be run again, by reference

    @property
    def keeps_schema(self) -> bool:
        """Return True if the older program can open the home afterwards."""
        return self.schema_before == self.schema_after


def upgrade(source: str, *, is_trial: bool, is_sure: bool, seconds: int) -> int:
    """Try the program of *source*, a wheel or a commit; without *is_trial*, let it take over. Return the exit code.

    Raises UserError for what cannot be tried, such as a shared store.
    """
    if "BUILD_COMMIT" in os.environ:  # our image; in another container, this is an installation as on any machine
        return _explain_container()
    settings = load_settings(os.environ)
    if settings.store.address:
        raise UserError(
            "the store is PostgreSQL, which a trial must not change: restore a pg_dump into another database, and start"
            " the new program on it with PARLOUR_STORE__URL and an empty PARLOUR_HOME"
        )
    wheel = _wheel_of(source)
    site = Path(sysconfig.get_path("purelib"))
    if not is_trial and not (wheel is not None and _is_wheel_installation(site)):
        return _explain_checkout(source)
    with _trial_folder() as folder:
        python = _install_commit(source, folder) if wheel is None else _install_wheel(wheel, folder, site)
        report = try_program(python, folder, Home(settings.home))
        for row in report_rows(report):
            typer.echo(row)
        if report.errors or report.failures:
            typer.echo("Nothing was changed.")
            return 1
        if is_trial:
            typer.echo("Nothing was changed; without --try, the new program takes over.")
            return 0
        if not is_sure:
            typer.confirm("Let it take over now?", abort=True)
        process = _ask_process("status")
        if process.returncode not in (0, NO_GATEWAY):  # one that starts, or that an older program runs
            raise UserError(f"the running gateway does not answer, so nothing was changed:\n{_tail(process)}")
        before = json.loads(process.stdout.splitlines()[0]) if process.returncode == 0 else None
        exchange(site, next((folder / "venv").glob("lib/python*/site-packages")))
    return _watch_new_program(site, report, Home(settings.home), before, seconds)


def _wheel_of(source: str) -> Path | None:
    """Return the wheel that *source* names; None for a commit. Raises UserError."""
    wheel = Path(source).expanduser().absolute()
    if source.endswith(".whl"):
        if not wheel.is_file():
            raise UserError(f"there is no file {wheel}")
        return wheel
    if not (_ROOT / ".git").exists():
        raise UserError(f"{source!r} is no wheel, and this installation has no git checkout to take a commit from")
    return None


def go_back() -> int:
    """Put the program back that was in place before the last upgrade; return the exit code."""
    site = Path(sysconfig.get_path("purelib"))
    kept = _kept_of(site)
    if not kept.is_dir():
        raise UserError(f"no earlier program is kept in {kept}; only an upgrade by this command keeps one")
    _put_back(site)
    return 0


# -- the trial ---------------------------------------------------------------------------------------


def try_program(python: Path, folder: Path, home: Home) -> TrialReport:
    """Run the doctor of *python*'s program and the newest turns on a copy of *home* in *folder*, offline."""
    copy = folder / "home"
    typer.echo("Copying the home …")
    # Before the backup, or a turn that ends in between would be missing in the copy.
    found = call_operation("turns find", {"limit": REPLAYED})
    references = [str(line["reference"]) for line in found if line["outcome"] != "running"]
    # By the gateway, which may see no other folder of ours.
    home.backups.mkdir(mode=0o700, exist_ok=True)
    archive = home.backups / f"{folder.name}.tar.gz"
    try:
        call_operation("backup", {"file": str(archive)})
        shutil.move(archive, archive := folder / "home.tar.gz")
    finally:
        (home.backups / f"{folder.name}.tar.gz").unlink(missing_ok=True)
    ours = {name for name, level, _ in _findings(Path(sys.executable), os.environ) if level == "FAIL"}
    # The running gateway has the port, and figures of a copy are not for a collector.
    environment = {**os.environ, HOME: str(copy), "PARLOUR_WEB__PORT": "0", "PARLOUR_OTEL__ENABLED": "false"}
    command = (python, "-m", "parlour", "restore", archive, "--yes")
    _run(command, environment, "the new program cannot restore the copy")
    archive.unlink()
    # What a backup leaves out: the trial reads the settings and keys of the home, and is removed with them.
    for name in (SECRETS, *FILE_NAMES):
        if (home.path / name).is_dir():
            shutil.copytree(home.path / name, copy / name, dirs_exist_ok=True)
        elif (home.path / name).exists():
            shutil.copy2(home.path / name, copy / name)
    before = _schema(home)
    version = _run((python, "-m", "parlour", "--version"), environment, "the new program does not start").strip()
    errors = [each for each in _findings(python, environment) if each[1] == "FAIL" and each[0] not in ours]
    different: Counter[str] = Counter()
    failures: dict[str, str] = {}
    skipped = 0
    with typer.progressbar(references, label="Running turns again") as bar:
        for reference in bar:
            process = _call((python, "-m", "parlour", "replay", reference, "--json"), environment)
            if process.returncode == NOTHING_TO_REPLAY:
                skipped += 1
            elif process.returncode in (0, 1) and (differences := _differences(process.stdout)) is not None:
                different.update(differences)
            else:
                failures[reference] = _tail(process).splitlines()[-1] or f"exit code {process.returncode}"
    return TrialReport(
        version=version.removeprefix("parlour "),
        schema_before=before,
        schema_after=_schema(Home(copy)),
        errors=tuple(f"{name}: {text}" for name, _, text in errors),
        replayed=len(references) - len(failures) - skipped,
        skipped=skipped,
        different=dict(different),
        failures=failures,
    )


def report_rows(report: TrialReport) -> Iterator[str]:
    """Yield the report as rows of text."""
    yield f"{program_version()} -> {report.version}"
    yield f"doctor: {len(report.errors) or 'no'} new error{'' if len(report.errors) == 1 else 's'}"
    yield from (f"  {each}" for each in report.errors)
    yield f"turns run again: {report.replayed}, of which differ:"
    for what, count in sorted(report.different.items()):
        yield f"  {what}: {count}"
    if not report.different:
        yield "  none"
    if report.skipped:
        yield f"  nothing to run again: {report.skipped} (commands, and what was erased or has expired)"
    for reference, failure in list(report.failures.items())[:_TAIL]:
        yield f"  {reference} cannot be run again: {failure}"
    if report.keeps_schema:
        yield f"the home keeps its schema ({report.schema_before}): the older program can open it again"
    else:
        yield (
            f"the home is migrated ({report.schema_before} -> {report.schema_after}): going back restores the snapshot"
            " of before, and messages since then are unknown to the bot"
        )


def _differences(printed: str) -> set[str] | None:
    """Return the kinds of differences that a replay printed; None if it is not what a replay prints."""
    with suppress(ValueError, KeyError, IndexError):
        return {str(each["where"]).partition(" ")[0] for each in json.loads(printed.splitlines()[-1])["differences"]}
    return None


def _findings(python: Path, environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    done = _call((python, "-m", "parlour", "doctor", "--offline", "--json"), environment)
    found = []
    for row in done.stdout.splitlines():
        with suppress(ValueError, KeyError):
            line = json.loads(row)
            found.append((str(line["name"]), str(line["level"]), str(line["text"])))
    if not found:
        raise UserError(f"`{python} -m parlour doctor --offline` failed:\n{_tail(done)}")
    return found


def _schema(home: Home) -> str:
    """Return the numbers of the home's schema and of its journal's."""
    number = read_store(home.journal, "", lambda database: database.execute("PRAGMA user_version").fetchone()[0])
    return f"{schema_of(home)}/{number}"


# -- two programs ------------------------------------------------------------------------------------


def exchange(site: Path, fresh: Path) -> None:
    """Give *site* the packages of *fresh*, and keep those of before beside it. Raises UserError."""
    kept, following = _kept_of(site), site.with_name("site-packages.next")
    shutil.rmtree(following, ignore_errors=True)
    fresh.rename(following)
    _swap(site, following)
    shutil.rmtree(kept, ignore_errors=True)
    following.rename(kept)


def _swap(first: Path, second: Path) -> None:
    """Let two folders change places at once. Raises UserError where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE):
        raise UserError(f"{first} and {second} cannot change places ({os.strerror(ctypes.get_errno())})")


def _put_back(site: Path) -> None:
    kept = _kept_of(site)
    _swap(site, kept)
    shutil.rmtree(kept, ignore_errors=True)
    typer.echo(f"The earlier program is back: {_restart()}.")


def _kept_of(site: Path) -> Path:
    return site.with_name("site-packages.before-upgrade")


def _watch_new_program(
    site: Path, report: TrialReport, home: Home, before: Mapping[str, Any] | None, seconds: int
) -> int:
    """Restart the gateway with the new program, and go back if it does not come up, ends or falls behind."""
    typer.echo(f"{report.version} is in place: {_restart()}.")
    back = "parlour upgrade --back"
    if before is None:
        typer.echo(f"No gateway ran, so nothing is watched. `{back}` goes back.")
        return 0
    trouble = _await_trouble(report.version, home, before, seconds)
    if not trouble:
        typer.echo(f"All is well. `{back}` goes back while the program of before is kept.")
        return 0
    if not report.keeps_schema:
        typer.echo(f"{trouble}, and the home is migrated. To go back: `{back}`, then what the next start prints.")
        return 1
    typer.echo(f"{trouble}: going back.")
    _put_back(site)
    return 1


def _await_trouble(version: str, home: Home, before: Mapping[str, Any], seconds: int) -> str:
    """Watch the gateway until it has been up for *seconds*; return the first trouble, or ""."""
    longest = max(_QUEUE_LIMIT, 2 * float(before.get("oldest_seconds") or 0))
    began = time.monotonic()
    answered, held, up, since = began, began, 0.0, ""
    with typer.progressbar(length=seconds, label="Watching it") as bar:
        # Ended by an answer, not by time alone: a program that ended just before the last look has not passed.
        while up < seconds:
            status = _ask("status")
            now = time.monotonic()
            if is_held(home):
                held = now
            if status is not None and status["version"] == version and status["since"] != before["since"]:
                if since and status["since"] != since:
                    return "the new program ended and was started again"
                if not since:
                    since, began = str(status["since"]), now
                answered, up = now, now - began
                waits = float(status.get("oldest_seconds") or 0)
                if waits > longest:
                    return f"a message waits for {waits:.0f} seconds"
                bar.update(int(up) - bar.pos)
            if now - held > _GONE_AFTER:
                return "the new program ended"
            if now - answered > _ANSWERS_WITHIN:
                return f"the new program has not answered for {_ANSWERS_WITHIN} seconds"
            time.sleep(_POLL)
    return ""


def _restart() -> str:
    """Ask the gateway, if one runs, to start again in its process; return the outcome in words."""
    process = _ask_process("setup restart")
    if process.returncode == 0:
        return "the gateway starts again"
    return "no gateway runs; start it" if process.returncode == NO_GATEWAY else f"start it again ({_tail(process)})"


def _ask_process(operation: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: the program in place asks, whose modules are not those of this one any more.
    return _call((sys.executable, "-m", "parlour", "ask", operation), os.environ)


def _ask(operation: str) -> Mapping[str, Any] | None:
    """Return the first line of an operation of the running gateway; None if none answers."""
    process = _ask_process(operation)
    with suppress(ValueError, IndexError):
        line: dict[str, Any] = json.loads(process.stdout.splitlines()[0])
        return line
    return None


def _is_wheel_installation(site: Path) -> bool:
    return sys.prefix != sys.base_prefix and _ROOT.is_relative_to(site)


@contextmanager
def _trial_folder() -> Iterator[Path]:
    """Make a folder for the trial in this environment, where its packages can be linked; it is removed at the end."""
    lock = os.open(sys.prefix, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for stale in Path(sys.prefix).glob(f"{_TRIAL}*"):  # of a trial that was killed: it holds keys and conversations
            shutil.rmtree(stale)
        folder = Path(tempfile.mkdtemp(prefix=_TRIAL, dir=sys.prefix))
    except BlockingIOError:
        os.close(lock)
        raise UserError("another upgrade of this installation is running") from None
    except OSError as error:
        os.close(lock)
        raise UserError(
            f"{sys.prefix} cannot be written ({error}): run this as the user who owns both it and the home"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if (_ROOT / ".git").exists():
            _call(("git", "-C", _ROOT, "worktree", "prune"), os.environ)
        os.close(lock)


def _install_wheel(wheel: Path, folder: Path, site: Path) -> Path:
    """Install *wheel*, with the lock beside it if there is one, over a linked copy of this environment's packages."""
    typer.echo(f"Installing {wheel.name} beside this program …")
    venv = folder / "venv"
    _run((sys.executable, "-m", "venv", "--without-pip", venv), os.environ, "no virtual environment can be made")
    target = next(venv.glob("lib/python*/site-packages"))
    target.rmdir()
    shutil.copytree(site, target, symlinks=True, copy_function=os.link)
    pip = (venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    lock = wheel.with_name(f"{'-'.join(wheel.name.split('-')[:2])}.lock")
    if lock.is_file():
        locked = (*pip, "--require-hashes", "--only-binary", ":all:", "-r", lock)
        _run(locked, os.environ, f"the packages of {lock.name} cannot be installed")
    _run((*pip, "--force-reinstall", "--no-deps", wheel), os.environ, f"{wheel.name} cannot be installed")
    check = _call((venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "check"), os.environ)
    # The extras of this installation are not known: what they miss is found by the doctor.
    needs = [row for row in check.stdout.splitlines() if row.startswith("parlour ")]
    if needs:
        raise UserError(f"packages are missing, put {lock.name} beside the wheel: {'; '.join(needs)}")
    return venv / "bin/python"


def _install_commit(commit: str, folder: Path) -> Path:
    """Check *commit* out beside this checkout, and install it as `make install` does."""
    checkout = folder / "checkout"
    command = ("git", "-C", _ROOT, "worktree", "add", "--detach", checkout, commit)
    _run(command, os.environ, f"git knows no commit {commit!r}")
    typer.echo(f"Installing {commit} beside this program …")
    _run(("make", "-C", checkout, "install"), os.environ, "`make install` failed there")
    return checkout / ".venv/bin/python"


def _explain_container() -> int:
    typer.echo(
        "In a container the image is replaced, from the host:\n"
        "  git pull && COMMIT=$(git rev-parse --short=8 HEAD) docker compose up --detach --build\n"
        "and to go back:\n"
        "  git checkout ORIG_HEAD && COMMIT=$(git rev-parse --short=8 HEAD) docker compose up --detach --build"
    )
    return 0


def _explain_checkout(source: str) -> int:
    typer.echo(
        "Only an installation from a wheel in a virtual environment is replaced by this command. With --try, it tries"
        f" {source}. Then, in the folder of the checkout:\n"
        "  git pull && make run\n"
        "and to go back:\n"
        "  git checkout ORIG_HEAD && make run"
    )
    return 0


# -- processes ---------------------------------------------------------------------------------------


def _call(command: Sequence[str | Path], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = [str(each) for each in command]
    within = _INSTALL_WITHIN if "install" in words else _STEP_WITHIN
    try:
        return subprocess.run(  # noqa: S603 - our own program, git, make and pip; the source is the operator's
            words,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=within,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"it did not end within {within} seconds")
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", str(error))


def _run(command: Sequence[str | Path], environment: Mapping[str, str], trouble: str) -> str:
    """Run a step and return its output. Raises UserError with *trouble* and the end of its output."""
    done = _call(command, environment)
    if done.returncode:
        raise UserError(f"{trouble}:\n{_tail(done)}")
    return done.stdout


def _tail(process: subprocess.CompletedProcess[str]) -> str:
    return "\n".join((process.stderr or process.stdout).strip().splitlines()[-_TAIL:])
