"""The command line: wrong settings are one line and exit code 2, and the doctor says the same line."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import structlog

from gateway.cli import app
from gateway.home import SCHEMA, Home, hold_lock
from gateway.main import main

TOKEN = "PARLOUR_CHANNELS__TELEGRAM__TOKEN"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own, a free port, nothing inherited; umask and logs as they were."""
    for name in list(os.environ):
        if name.startswith("PARLOUR_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PARLOUR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PARLOUR_WEB__PORT", "0")
    before = os.umask(0o077)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    os.umask(before)


def parlour(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run a command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["parlour", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def occupied(stack: ExitStack) -> dict[str, str]:
    """Listen on a port, and choose it."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return {"PARLOUR_WEB__PORT": str(listener.getsockname()[1])}


def in_use(stack: ExitStack) -> dict[str, str]:
    """Hold the home."""
    home = Home(Path(os.environ["PARLOUR_HOME"]))
    home.path.mkdir()
    stack.enter_context(hold_lock(home))
    return {}


def write_newer_version(_: ExitStack) -> dict[str, str]:
    """Make the home one of a newer Parlour."""
    home = Path(os.environ["PARLOUR_HOME"])
    home.mkdir()
    (home / "schema").write_text("99\n")
    return {}


def plain(**variables: str) -> dict[str, str]:
    """Return variables as they stand."""
    return variables


WRONG: dict[str, tuple[dict[str, str] | Callable[[ExitStack], dict[str, str]], str]] = {
    "token": (plain(**{TOKEN: "canary"}), f"{TOKEN} is not a Telegram bot token; copy it from @BotFather"),
    "key": (plain(PARLOUR_LLM__MODLE="x"), "did you mean PARLOUR_LLM__MODEL?"),
    "home": (plain(PARLOUR_HOME="/proc/home"), "or set PARLOUR_HOME to another directory"),
    "home-file": (plain(PARLOUR_HOME="/dev/null"), "/dev/null is not a directory; move that file away"),
    "port": (occupied, "is taken: stop what listens on 127.0.0.1:"),
    "host": (
        plain(PARLOUR_WEB__HOST="192.0.2.1", PARLOUR_WEB__PORT="8787"),
        "set PARLOUR_WEB__HOST to an address of this",
    ),
    "everyone": (plain(PARLOUR_CHANNELS__WEB__ALLOW_FROM="*"), "confirm it with PARLOUR_ALLOW_EVERYONE=true"),
    "newer": (write_newer_version, f"was written by a newer Parlour (schema 99, this version supports {SCHEMA})"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_one_line_and_the_doctors_line(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`parlour run` ends with exit code 2 and one line that says how to mend it; `parlour doctor` says that line."""
    make, expected = WRONG[case]
    with ExitStack() as stack:
        for name, value in (make(stack) if callable(make) else make).items():
            monkeypatch.setenv(name, value)
        assert parlour(monkeypatch, "run") == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("\n") == 1
        line = told.err.removeprefix("parlour: ").strip()
        assert expected in line
        assert "canary" not in line
        assert parlour(monkeypatch, "doctor") == 2
        assert line in " ".join(capsys.readouterr().out.split())


def test_a_second_gateway_refuses_and_the_doctor_takes_the_first_for_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who holds the home is named; for the doctor, a gateway that runs is how it should be, its port included."""
    with ExitStack() as stack:
        in_use(stack)
        monkeypatch.setenv("PARLOUR_WEB__PORT", occupied(stack)["PARLOUR_WEB__PORT"])
        assert parlour(monkeypatch, "run") == 2
        assert f"is in use by process {os.getpid()}; stop that process first" in capsys.readouterr().err
        assert parlour(monkeypatch, "doctor") == 0
        assert "a gateway is running on this home" in capsys.readouterr().out


def test_the_doctor_changes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A look at a home that is not there does not create it."""
    assert parlour(monkeypatch, "doctor") == 0
    assert not Path(os.environ["PARLOUR_HOME"]).exists()
    assert "0 errors, " in capsys.readouterr().out


def test_the_doctor_sees_what_others_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A world-readable secret fails, a world-readable home is warned of, each with the command that mends it."""
    secrets = tmp_path / "home" / "secrets"
    secrets.mkdir(parents=True)
    key = secrets / "LLM__API_KEY"
    key.write_text("canary")
    key.chmod(0o644)
    (tmp_path / "home").chmod(0o755)
    assert parlour(monkeypatch, "doctor", "--json") == 2
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    levels = {finding["text"]: finding["level"] for finding in found if finding["name"] == "privacy"}
    mends = {text.partition("; ")[2]: level for text, level in levels.items()}
    assert mends == {f"run chmod 700 {tmp_path / 'home'}": "WARN", f"run chmod 600 {key}": "FAIL"}
    assert stat.S_IMODE(key.stat().st_mode) == 0o644
    assert "canary" not in json.dumps(found)


def test_the_doctor_finds_a_damaged_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal that is no database fails, and the way back is named."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "journal.db").write_bytes(b"SQLite format 3\0" + b"x" * 5_000)
    assert parlour(monkeypatch, "doctor") == 2
    assert "parlour restore FILE --force`" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nonsense"], ["run", "--nonsense"], ["sessions", "show"]])
def test_a_wrong_command_is_exit_code_2(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Usage errors have the exit code of every mistake."""
    assert parlour(monkeypatch, *arguments) == 2


def test_restore_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there is one line."""
    assert parlour(monkeypatch, "restore", "/nowhere/b.tar.gz") == 2
    assert (
        capsys.readouterr().err
        == "parlour: /nowhere/b.tar.gz does not exist; name a file that `.venv/bin/parlour backup` wrote\n"
    )


PROBE = """
import sys
sys.argv = ["parlour", *sys.argv[1:]]
from gateway.main import main
try:
    main()
except SystemExit:
    pass
heavy = ("litellm", "openai", "starlette", "uvicorn", "gateway.app", "telegram", "slack_bolt", "discord", "aiosqlite")
print("HEAVY", *[name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["doctor"], ["run"]])
def test_light_commands_import_nothing_heavy(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Help, doctor and a start that ends with a wrong setting are over before a heavy library is imported."""
    monkeypatch.setenv("PARLOUR_WEB__PORT", "x" if arguments == ["run"] else "0")
    command = [sys.executable, "-c", PROBE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own interpreter
    assert done.stdout.splitlines()[-1] == "HEAVY"


def test_help_names_every_command_once_with_its_whole_first_paragraph(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's help has them in sections, a new command in one too; nothing is cut at the terminal's width."""
    monkeypatch.setattr(sys, "argv", ["parlour", "--help"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().out
    shown = [info for info in app.registered_commands if info.callback is not None and not info.hidden]
    commands = {info.name or getattr(info.callback, "__name__", "") for info in shown}
    commands |= {info.name or "" for info in app.registered_groups}
    listed = re.findall(r"^  ([a-z-]+)  ", printed.partition("Run it:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(commands)
    assert "Commands:" not in printed
    assert "..." not in printed.partition("Run it:")[2]
    assert "when no backup can be restored." in " ".join(printed.split())


def test_a_shell_completes_commands_and_their_choices(tmp_path: Path) -> None:
    """What `parlour --install-completion` writes makes bash complete commands, subcommands, options and choices."""
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def bash(script: str) -> str:
        command = ["bash", "--norc", "-c", f"{script}\n:"]  # bash stays, as the parent that the command looks for
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout  # noqa: S603

    def complete(*words: str) -> set[str]:
        quoted = " ".join(repr(word) for word in words)
        position = f"COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}"
        script = (
            '. ~/.bashrc; %s; $(complete -p parlour | grep -o "_[a-z_]*") parlour; printf "%%s\\n" "${COMPREPLY[@]}"'
        )
        return set(bash(script % position).split())

    assert "_PARLOUR_COMPLETE" in bash("parlour --show-completion bash")
    assert "bash completion installed" in bash("parlour --install-completion bash")
    assert complete("parlour", "doc") == {"doctor"}
    assert complete("parlour", "sessions", "") == {"list", "show"}
    assert complete("parlour", "doctor", "--of") == {"--offline"}
    assert complete("parlour", "deploy", "") == {"systemd", "compose", "monitoring"}
    assert not Path(os.environ["PARLOUR_HOME"]).exists()
