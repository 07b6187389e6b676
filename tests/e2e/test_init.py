"""`parlour init`: asked one thing at a time, verified by real calls, written whole, with what was there kept."""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from gateway.commands.init import InitOptions, InitWizard
from gateway.commands.init_prompts import UnattendedPrompter
from gateway.errors import SettingsError, UserError
from gateway.installation import operator_command
from gateway.ports.setup import Finding
from gateway.settings import InstalledPlugins, check_settings
from tests.fakes.gateway import COMMAND
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, open_server, with_calls
from tests.fakes.settings import kinds as real_kinds
from tests.fakes.setup_platform import (
    TOKEN,
    SetupPlatform,
    SetupPlatformPlugin,
    SetupPlatformSettings,
    in_the_background,
    open_aviary,
)

KEY = "sk-canary-0123456789abcdef"


def kinds() -> InstalledPlugins:
    """Return the real kinds and the parrot."""
    real = real_kinds()
    return InstalledPlugins({**real.models, "parrot": lambda: SetupPlatformSettings})


class ScriptedPrompts:
    """Somebody at the terminal: answers by question, the rest with Enter; everything shown is noted."""

    is_person = True

    def __init__(self, answers: Mapping[str, Sequence[str]], *, leaves_at: str = "") -> None:
        self._answers = {question: list(texts) for question, texts in answers.items()}
        self._leaves_at = leaves_at
        self.seen: list[str] = []

    def say(self, text: str, *, look: str = "") -> None:
        self.seen.append(text)

    def show(self, finding: Finding) -> None:
        self.seen.append(f"{finding.level}: {finding.text}")

    def ask(self, text: str, *, default: str = "", is_secret: bool = False, variable: str = "") -> str:
        return self._answer(text, "kept" if is_secret and default else default) or default

    def choose(self, text: str, options: Sequence[str]) -> str:
        return self._answer(text, "/".join(options)) or options[0]

    def confirm(self, text: str, *, default: bool) -> bool:
        return (self._answer(text, "y" if default else "n") or ("y" if default else "n")) == "y"

    def _answer(self, text: str, shown: str) -> str:
        self.seen.append(f"? {text} [{shown}]")
        if self._leaves_at and text.startswith(self._leaves_at):
            raise typer.Abort
        found = next((texts for question, texts in self._answers.items() if text.startswith(question)), [])
        return found.pop(0) if found else ""

    @property
    def told(self) -> str:
        """Everything on the screen."""
        return "\n".join(self.seen)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where the home will be, under a careless umask."""
    before = os.umask(0o022)
    yield tmp_path / "home"
    os.umask(before)


@pytest.fixture(scope="module")
def aviary() -> Iterator[SetupPlatform]:
    """The parrots' platform."""
    with in_the_background(open_aviary(SetupPlatform())) as platform:
        yield platform


@pytest.fixture
def environment(home: Path, aviary: SetupPlatform) -> dict[str, str]:
    """What a shell has: the home, and where the test's platform is."""
    aviary.missing = ""
    return {
        "PARLOUR_HOME": str(home),
        "PARLOUR_CHANNELS__PARROT__BASE_URL": aviary.base,
        "PARLOUR_CHANNELS__PARROT__ENABLED": "true",
        "TZ": "UTC",
    }


def init(
    environment: Mapping[str, str], talk: ScriptedPrompts | UnattendedPrompter, options: InitOptions | None = None
) -> None:
    """Run it with the parrot as the one platform."""
    InitWizard(
        environment, talk, options or InitOptions(), kinds=kinds(), setups={"parrot": SetupPlatformPlugin()}
    ).run()


def files(home: Path) -> dict[str, str]:
    """Return every file of the home, and see that nobody else can read any of it."""
    found = {}
    for path in [home, *sorted(home.rglob("*"))]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        if path.is_file():
            found[str(path.relative_to(home))] = path.read_text("utf-8")
    return found


def test_from_nothing_to_a_home_that_starts(home: Path, environment: dict[str, str]) -> None:
    """Model, platform, owner and zone: verified, written 0600, the secret in a file of its own and never shown."""
    person = ScriptedPrompts(
        {
            "Connect Parrot": ["y"],
            "Ring": [TOKEN],
            "Who may write": ["501, 502"],
            "Owner": ["parrot:501"],
            "Time zone": ["Europe/Berlin"],
        }
    )
    init(environment, person)
    written = files(home)
    assert sorted(written) == ["parlour.yaml", "secrets/channels__parrot__token"]
    assert written["secrets/channels__parrot__token"] == f"{TOKEN}\n"
    assert "canary" not in written["parlour.yaml"] + person.told
    assert "OK: this is polly" in person.told
    assert "1. Open the cage." in person.told
    assert f"{home}/parlour.yaml  (channels.parrot.allow_from, owners, timezone)" in person.told
    settings = check_settings(environment, kinds()).require()
    assert settings.owners == ("parrot:501",)
    assert settings.channels["parrot"].allow_from == ("501", "502")
    assert settings.timezone == "Europe/Berlin"


def test_again_offers_what_is_there_and_writes_nothing(home: Path, environment: dict[str, str]) -> None:
    """A second run, answered with Enter alone, changes no byte; secrets are offered as kept, never as text."""
    init(
        environment,
        ScriptedPrompts({"Connect": ["y"], "Ring": [TOKEN], "Who": ["501"], "Time zone": ["Europe/Berlin"]}),
    )
    before = files(home)
    person = ScriptedPrompts({"Owner": ["parrot:501"]})
    init(environment, person)
    assert "? Owner [parrot:501]" in person.told
    before["parlour.yaml"] += 'owners:\n  - "parrot:501"\n'
    again = ScriptedPrompts({})
    after = files(home)
    init(environment, again)
    assert files(home) == after
    assert "? Ring [kept]" in again.told
    assert "? Who may write [501]" in again.told
    assert "? Time zone [Europe/Berlin]" in again.told
    assert "Nothing needed to be written." in again.told
    assert "canary" not in again.told


def test_wrong_answers_are_asked_again_with_the_platforms_reason(home: Path, environment: dict[str, str]) -> None:
    """A token of the wrong shape is told at once, an unknown one by the platform; what was right is offered again."""
    person = ScriptedPrompts(
        {
            "Connect": ["y"],
            "Ring": ["canary", "parrot-unknown", TOKEN],
            "Who may write": ["Ann Smith", "501"],
            "Correct it": ["again"],
            "Time zone": ["Berln", "Europe/Berlin"],
        }
    )
    init(environment, person)
    told = person.told
    assert "token is no parrot's token; it begins with parrot-" in told
    assert "is not a user id of this platform" in told
    assert "FAIL: the ring is not known; read it again" in told
    assert told.index("ring is not known") < told.index("? Who may write [501]") < told.index("OK: this is polly")
    assert "'Berln' is not a time zone" in told
    assert "canary" not in told
    assert files(home)["secrets/channels__parrot__token"] == f"{TOKEN}\n"


@pytest.mark.parametrize("answer", ["no", "skip"])
@pytest.mark.parametrize("question", ["Ring", "Who may write"])
def test_no_and_skip_leave_a_platform(question: str, answer: str, home: Path, environment: dict[str, str]) -> None:
    """At any of its questions, whatever was answered before: nothing of it is written, and the next step comes."""
    person = ScriptedPrompts({"Connect": ["y"], "Ring": [TOKEN], question: [answer], "Time zone": ["new york"]})
    init(environment, person)
    assert "was not changed" in person.told
    assert sorted(files(home)) == ["parlour.yaml"]
    assert check_settings(environment, kinds()).require().timezone == "America/New_York"


@pytest.mark.parametrize(("choice", "is_written"), [("keep", True), ("skip", False)])
def test_what_is_wrong_can_be_kept_or_left(
    choice: str, is_written: bool, home: Path, environment: dict[str, str]
) -> None:
    """Who knows better may keep an answer that was not verified; who gives up leaves no trace of it."""
    init(environment, ScriptedPrompts({"Connect": ["y"], "Ring": ["parrot-unknown"], "Correct it": [choice]}))
    assert (home / "secrets/channels__parrot__token").exists() is is_written


def test_the_world_is_not_let_in_by_the_way(home: Path, environment: dict[str, str]) -> None:
    """A `*` needs its second switch: what the settings refuse is told and asked again, and nothing of it is written."""
    person = ScriptedPrompts({"Connect": ["y"], "Ring": [TOKEN], "Who may write": ["*", "501"]})
    init(environment, person)
    assert "confirm it with PARLOUR_ALLOW_EVERYONE=true" in person.told
    assert check_settings(environment, kinds()).require().channels["parrot"].allow_from == ("501",)


WRITTEN = """\
# the gateway of Ann
web:
    port: 9000   # behind nginx
channels:
    parrot:
        token: parrot-of-old   # move me
        # only us
        allowFrom: ["0501"]   # Ann
    web: {enabled: off}
timezone: UTC
"""


def test_what_somebody_wrote_stays(home: Path, environment: dict[str, str]) -> None:
    """Comments, order, spelling, `off` and 0501 stand as they stood; a secret leaves the file, its line stays."""
    home.mkdir()
    (home / "parlour.yaml").write_text(WRITTEN)
    init(environment, ScriptedPrompts({"Ring": [TOKEN], "Who": ["0501, 77"], "Time zone": ["Europe/Berlin"]}))
    text = (home / "parlour.yaml").read_text()
    assert "parrot-of-old" not in text
    for line in ("# the gateway of Ann", "    port: 9000   # behind nginx", "# move me", "        # only us", "# Ann"):
        assert line in text
    assert text.index("web:") < text.index("channels:") < text.index("timezone: Europe/Berlin")
    assert "web: {enabled: off}" in text
    assert "allow_from" not in text
    settings = check_settings(environment, kinds()).require()
    assert settings.channels["parrot"].allow_from == ("0501", "77")
    assert settings.web.port == 9000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parlour.yaml", "# nothing yet\n"),
        ("parlour.yaml", "channels:\n  parrot:\n"),
        ("parlour.yaml", "llm: {model: ''}\nchannels: {parrot: {allow_from: []}}\n"),
        ("parlour.yml", "channels:\n  web: &own\n    reply_in: thread\n  console:\n    <<: *own\n"),
        ("parlour.json", '{"channels": {"web": {"enabled": false}}}'),
    ],
)
def test_every_kind_of_file_is_added_to(name: str, text: str, home: Path, environment: dict[str, str]) -> None:
    """Comments alone, an empty group, flow style, another ending, JSON: what was there counts, and what was added."""
    home.mkdir()
    (home / name).write_text(text)
    init(
        environment,
        ScriptedPrompts({"Connect": ["y"], "Ring": [TOKEN], "Who": ["501"], "Time zone": ["Europe/Berlin"]}),
    )
    report = check_settings(environment, kinds())
    assert report.require().channels["parrot"].allow_from == ("501",)
    assert report.file == home / name
    if text.startswith("#"):
        assert (home / name).read_text().startswith(text)
    if name.endswith(".json"):
        assert not report.require().channels["web"].enabled


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("parlour.toml", 'timezone = "UTC"\n', "is TOML, which `parlour init` cannot write"),
        ("parlour.yaml", "a: [", "cannot be read as YAML"),
        ("parlour.yaml", "- a\n", "must contain names with values"),
    ],
)
def test_what_cannot_be_added_to_is_said_before_anything_is_asked(
    name: str, text: str, line: str, home: Path, environment: dict[str, str]
) -> None:
    """A file of a shape we cannot write is left alone, in one line."""
    home.mkdir()
    (home / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(line)):
        init(environment, ScriptedPrompts({}))
    assert (home / name).read_text() == text


@pytest.mark.parametrize("leaves_at", ["Model", "Connect", "Ring", "Who may write", "Owner", "Time zone"])
def test_leaving_in_the_middle_keeps_whole_steps(leaves_at: str, home: Path, environment: dict[str, str]) -> None:
    """Ctrl-C at any question: what was verified stands, what was answered is offered again, and it goes on."""
    answers = {"Connect": ["y"], "Ring": [TOKEN], "Who": ["501"], "Owner": ["parrot:501"], "Time": ["Europe/Berlin"]}
    with pytest.raises(typer.Abort):
        init(environment, ScriptedPrompts(answers, leaves_at=leaves_at))
    is_connected = leaves_at in ("Owner", "Time zone")
    there = sorted(files(home)) if home.exists() else []
    answered = [".init-answers.json"] if leaves_at == "Who may write" else []
    assert there == (["parlour.yaml", "secrets/channels__parrot__token"] if is_connected else answered)
    again = ScriptedPrompts(
        {"Connect": ["y"], "Ring": [] if answered else [TOKEN], "Who": ["501"], "Time": ["Europe/Berlin"]}
    )
    init(environment, again)
    assert ("? Ring [kept]" in again.told) is (is_connected or bool(answered))
    assert ".init-answers.json" not in files(home)
    assert check_settings(environment, kinds()).require().timezone == "Europe/Berlin"


def test_a_script_takes_everything_from_the_environment(
    home: Path, environment: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--yes writes what options and environment say once it is verified, with secrets from files too."""
    ring = tmp_path / "ring"
    ring.write_text(TOKEN)
    environment |= {
        "PARLOUR_CHANNELS__PARROT__TOKEN_FILE": str(ring),
        "PARLOUR_CHANNELS__PARROT__ALLOW_FROM": "501",
    }
    init(environment, UnattendedPrompter(keeps=False), InitOptions(owners=("parrot:501",), timezone="Europe/Berlin"))
    plain = {"PARLOUR_HOME": str(home)}
    settings = check_settings(plain, kinds()).require()
    assert settings.channels["parrot"].allow_from == ("501",)
    assert settings.owners == ("parrot:501",)
    assert files(home)["secrets/channels__parrot__token"] == f"{TOKEN}\n"
    assert "canary" not in capsys.readouterr().out


@pytest.mark.parametrize("keeps", [False, True])
def test_a_script_ends_where_something_is_wrong(keeps: bool, home: Path, environment: dict[str, str]) -> None:
    """A token that the platform refuses ends it and is not written, unless it was told to keep such."""
    environment["PARLOUR_CHANNELS__PARROT__TOKEN"] = "parrot-unknown"
    if keeps:
        init(environment, UnattendedPrompter(keeps=True))
    else:
        with pytest.raises(UserError, match="nothing was saved in this step"):
            init(environment, UnattendedPrompter(keeps=False))
    assert (home / "secrets/channels__parrot__token").exists() is keeps


def test_a_script_is_told_what_is_missing(environment: dict[str, str]) -> None:
    """The variable's name, since there is nobody to ask; and a platform that is none is named."""
    with pytest.raises(UserError, match="PARLOUR_CHANNELS__PARROT__TOKEN is required"):
        init(environment, UnattendedPrompter(keeps=False))
    with pytest.raises(UserError, match="'parot' is not a platform that can be set up"):
        init(environment, UnattendedPrompter(keeps=False), InitOptions(platforms=("parot",)))
    with pytest.raises((SettingsError, UserError)):
        init(
            {"PARLOUR_HOME": environment["PARLOUR_HOME"]},
            UnattendedPrompter(keeps=False),
            InitOptions(owners=("nobody",)),
        )


def test_a_full_disk_is_said_and_nothing_stands_half(
    home: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is asked again, so that nothing typed is lost, and goes through once there is room."""
    fsync = os.fsync
    tries: list[int] = []

    def full_at_first(descriptor: int) -> None:
        tries.append(descriptor)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_at_first)
    person = ScriptedPrompts({"Connect": ["y"], "Ring": [TOKEN], "Who": ["501"]})
    init(environment, person)
    assert "is full (No space left on device); free some space" in person.told
    assert person.told.count("? Ring [kept]") == 1
    assert sorted(files(home)) == ["parlour.yaml", "secrets/channels__parrot__token"]


def test_a_home_that_cannot_be_is_said_before_anything_is_asked(home: Path, environment: dict[str, str]) -> None:
    """Nobody types a key first and learns then that it has no place."""
    home.touch()
    person = ScriptedPrompts({})
    with pytest.raises(UserError, match="is not a directory"):
        init(environment, person)
    assert not person.seen


def test_a_second_spelling_of_a_secret_is_replaced(home: Path, environment: dict[str, str]) -> None:
    """A secret file under the variable's whole name is written again under that name: two would contradict."""
    (home / "secrets").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    old = home / "secrets/PARLOUR_CHANNELS__PARROT__TOKEN"
    old.write_text("parrot-of-old")
    init(environment, ScriptedPrompts({"Ring": [TOKEN]}))
    assert sorted(files(home)) == ["secrets/PARLOUR_CHANNELS__PARROT__TOKEN"]
    assert old.read_text() == f"{TOKEN}\n"


@pytest.fixture(scope="module")
def model() -> Iterator[FakeOpenAI]:
    """A model server that takes one key."""

    def script(body: Mapping[str, object], n: int) -> ScriptedAnswer:
        known = {
            "test": None,
            "gone": ModelFault.NOT_FOUND,
            "poor": ModelFault.QUOTA,
            "odd": ModelFault.WEB_PAGE,
            "mute": ModelFault.EMPTY,
        }
        name = str(body["model"])
        return ScriptedAnswer(text="ok", fault=known.get(name, ModelFault.UNAUTHORISED))

    with in_the_background(open_server(with_calls(script))) as server:
        yield server


def test_the_model_is_tried_by_small_calls(model: FakeOpenAI, home: Path, environment: dict[str, str]) -> None:
    """Through the real library: each failure in words of its own, the answers offered again, the key in a file."""
    tries = ["openai/locked", "openai/gone", "openai/poor", "openai/odd", "ofline", "openai/test"]
    person = ScriptedPrompts(
        {"Model": tries, "Address": [model.base], "Key": [KEY], "Correct": ["again"] * 5, "Connect": ["n"]}
    )
    before = len(model.bodies)
    init(environment, person)
    assert len(model.bodies) - before == 6
    wrong = [line for line in person.seen if line.startswith("FAIL: ")]
    reasons = [
        "the key was rejected",
        "no model of this name",
        "no credit left",
        "does not answer as a model",
        "did you mean",
    ]
    assert [reason in line for reason, line in zip(reasons, wrong, strict=True)] == [True] * 5
    assert "OK: openai/test answered" in person.told
    assert "canary" not in person.told
    assert files(home)["secrets/llm__api_key"] == f"{KEY}\n"
    llm = check_settings(environment, kinds()).require().llm
    assert (llm.model, str(llm.api_base)) == ("openai/test", model.base)


@pytest.mark.parametrize(
    ("typed", "which", "name"),
    [
        ("qwen3", "", "openai/qwen3"),  # listed: the bare name is enough
        ("openai/qwen3", "", "openai/qwen3"),
        ("org/phi", "", "openai/org/phi"),  # a listed name may have a slash
        ("gpt", "", "openai/org/phi"),  # not listed: the first is offered
        ("gpt", "qwen3", "openai/qwen3"),
        ("openai/gpt", "qwen3", "openai/qwen3"),
    ],
)
def test_a_server_s_own_models_are_offered(
    typed: str, which: str, name: str, home: Path, environment: dict[str, str]
) -> None:
    """What the operator's own server lists at /v1/models is offered; a bare name becomes openai/<name>."""
    environment["PARLOUR_CHANNELS__PARROT__ENABLED"] = "false"
    with in_the_background(open_server([ScriptedAnswer(text="ok")])) as server:
        server.models = ["qwen3", "org/phi", "\x1b[2Jnasty"]
        person = ScriptedPrompts({"Model": [typed], "Address": [server.base], "Key": [KEY], "Which model": [which]})
        init(environment, person)
        llm = check_settings(environment, kinds()).require().llm
        assert llm.model == name
        assert all(headers["Authorization"] == f"Bearer {KEY}" for headers in server.headers)
        assert ("This server has no" in person.told) is ("gpt" in typed)


def test_a_model_that_cannot_be_reached_can_be_kept(home: Path, environment: dict[str, str]) -> None:
    """Somebody sets up before the server runs: told in words, kept when they say so; `none` goes back to offline."""
    person = ScriptedPrompts({"Model": ["openai/x"], "Address": ["http://127.0.0.1:9/v1"], "Correct": ["keep"]})
    init({**environment, "PARLOUR_CHANNELS__PARROT__ENABLED": "false"}, person)
    assert "nothing answers at http://127.0.0.1:9/v1" in person.told
    off = {**environment, "PARLOUR_CHANNELS__PARROT__ENABLED": "false"}
    assert check_settings(off, kinds()).require().llm.model == "openai/x"
    init(off, ScriptedPrompts({"Model": ["none"]}))
    assert check_settings(off, kinds()).require().llm.model == ""


class TerminalTyping:
    """Somebody's hands on a real terminal."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        # Whoever runs the suite in a shell's background hands an ignored SIGINT on; a terminal's user has none.
        here = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            [COMMAND, "init"], stdin=slave, stdout=slave, stderr=slave, env=dict(environment), start_new_session=True
        )
        signal.signal(signal.SIGINT, here)
        os.close(slave)
        self.screen = ""

    def until(self, words: str) -> None:
        """Read until something that *words* matches stands on the screen, behind what was seen before."""
        seen = len(self.screen)
        while not re.search(words, self.screen[seen:]):
            ready, _, _ = select.select([self._master], [], [], 30)
            assert ready, f"{words!r} never came:\n{self.screen}"
            try:
                self.screen += os.read(self._master, 65_536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended before {words!r}:\n{self.screen}") from None

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._master, f"{text}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C until the command ends: a signal right before Python's read waits for the next one."""
        while self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)

    def close(self) -> int:
        """Read to the end, and return the exit code."""
        while True:
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                break
            if not data:
                break
            self.screen += data.decode(errors="replace")
        return self.process.wait(20)

    def __enter__(self) -> TerminalTyping:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._master)
        self.process.kill()
        self.process.wait()


def test_on_a_real_terminal_a_key_is_not_echoed(model: FakeOpenAI, home: Path) -> None:
    """The real command on a pty: the key is typed and not seen; Ctrl-C afterwards keeps what was verified."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")}
    with TerminalTyping({**kept, "PARLOUR_HOME": str(home), "TERM": "dumb"}) as hands:
        hands.until("Model")
        hands.type("openai/test")
        hands.until("Address")
        hands.type(model.base)
        hands.until("Key")
        hands.type(KEY)
        hands.until(r"answered in[^?]*(Connect|Owner)")
        hands.interrupt()
        assert hands.close() == 130
        assert f"run `{operator_command('init')}` to continue" in hands.screen
        assert "canary" not in hands.screen
    assert files(home)["secrets/llm__api_key"] == f"{KEY}\n"


def test_without_a_terminal_it_says_so(home: Path) -> None:
    """A pipe cannot be asked: one line, exit code 2, nothing written."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")}
    done = subprocess.run(  # noqa: S603 - our own command
        [COMMAND, "init"],
        env={**kept, "PARLOUR_HOME": str(home)},
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "parlour: setting up needs a terminal, and there is none; in scripts, use --yes\n"
    assert not home.exists()
