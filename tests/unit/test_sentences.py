"""Every sentence a person can see stands in the catalogue, and every line of the catalogue is said."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

from agent.llm.model_catalog import ModelChoiceOrigin
from channels.web.logins import LoginOutcome
from channels.web.uploads import UploadRefusalReason
from gateway.alerts.alert_messages import REASONS
from gateway.events import Role
from gateway.i18n import FALLBACK, load_catalogue, translate
from gateway.i18n.failures import FAILURES
from gateway.i18n.languages import LANGUAGES
from gateway.ports import IntakeVerdict
from gateway.ports.caps import CapKind
from tests import sentences

ROOT = Path(__file__).resolve().parents[2]

# What an f-string's field can be, so that each key it makes is known. A new pattern is entered here.
FIELDS = {
    "caps.{}": {cap.word for cap in CapKind},
    "usage.{}": {f"{how}_{cap.word}" for how in ("left", "spent") for cap in CapKind if not cap.is_own},
    "alerts.because_{}": {name for name, _ in REASONS} | {"other"},
    "alerts.over_{}": {"channel", "delay", "model", "disk", "cap"},
    "memory.{}_done": {"approve", "reject"},
    "asking.{}": {"yes", "no"},
    "asking.why_{}": {"untrusted", "many", "deleted"},
    "model.{}": {origin.value for origin in ModelChoiceOrigin},
    "settings.{}": {"everywhere", "block", "chosen"},
    "forget.everything_{}": {"own", "chat"},
    "forget.erased_{}": {"own", "chat"},
    "forget.remains_{}": {"own", "chat"},
    "forget.beyond_{}": {"files", "downloads"},
    "strangers.{}": {"yes", "no"},
    "strangers.decided_{}": {"let_in", "kept_out", "place_open", "place_shut"},
    "failures.{}": {failure.name for failure in FAILURES},
    "frames.{}": {verdict.value for verdict in IntakeVerdict if verdict is not IntakeVerdict.ACCEPTED},
    "commands.only_{}": {role.value for role in Role if role is not Role.MEMBER},
    "web.upload_{}": {why.value for why in UploadRefusalReason},
    "web.login_{}": {outcome.value for outcome in LoginOutcome if outcome is not LoginOutcome.WELCOME},
}


def test_no_sentence_stands_outside_the_catalogue() -> None:
    """What people read is written in one place, so that it has one voice and can be translated."""
    out_of_place = [
        f"{path.relative_to(ROOT)}:{sentence.line}: {sentence.text!r}"
        for path in sentences.files(ROOT)
        for sentence in sentences.find(path.read_text("utf-8"), has_frames=path.relative_to(ROOT).parts[0] != "agent")
    ]
    assert not out_of_place, "move it to gateway/i18n/en and say() it"


PLANTED = [
    'OutboundMessage(id=i, key=k, text="I am very sorry")',
    "Reply(text=f'There are {n} of them')",
    'events.OutboundMessage(text="Please wait " + "a moment")',
    'Reply(text="Not now, sorry" if busy else say("a.b"))',
    'SORRY = "I am very sorry"\nReply(text=SORRY)',
    'line = ("It is " "late now")\nAccepted(verdict=v, line=line)',
    'frame = {"type": "trouble", "line": "That went badly wrong"}',
    'Reply(text="\\n".join(["These are my commands", *lines]))',
    'DisplayedMessage(id="x", text="Only {} are left".format(n))',
]


@pytest.mark.parametrize("source", PLANTED)
def test_a_planted_sentence_is_found(tmp_path: Path, source: str) -> None:
    """The search can fail: each way of writing a sentence into code is seen."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway/planted.py").write_text(source)
    (path,) = sentences.files(tmp_path)
    assert sentences.find(path.read_text("utf-8"), has_frames=True)


@pytest.mark.parametrize(
    "source",
    [
        'Reply(text=say("commands.new", language))',
        'log.info("turn.answered in good time")',
        'raise ToolFailed("no file of that name")',
        'OutboundMessage(text=f"{one} … {two}")',
        'say(f"failures.{name}")',
        '"""A module says what it promises."""',
    ],
)
def test_what_is_no_sentence_for_people_is_left_alone(source: str) -> None:
    """Catalogue keys, logs, a tool's words to the model and docstrings are not for people in a chat."""
    assert not sentences.find(source, has_frames=True)


def test_operators_lines_may_stand_where_they_arise(tmp_path: Path) -> None:
    """Settings, doctor, the CLI and logs speak English to whoever runs the gateway (ADR 2)."""
    for name in ("gateway/cli/run.py", "gateway/doctor.py", "channels/web/settings.py", "gateway/i18n/en/web.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('Reply("This is for the operator")')
    assert not list(sentences.files(tmp_path))


@cache
def modules() -> Sequence[tuple[Path, ast.Module]]:
    """Return every module outside the languages themselves."""
    languages = {("gateway", "words", language) for language in LANGUAGES}
    paths = [path for package in sentences.PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    outside = (path for path in paths if path.relative_to(ROOT).parts[:3] not in languages)
    return [(path, ast.parse(path.read_text("utf-8"))) for path in outside]


def keys_of(node: ast.expr) -> set[str] | None:
    """Return the keys a literal or an f-string can be; None when the text begins with no area of the catalogue."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if not isinstance(node, ast.JoinedStr):
        return None
    pattern = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if not is_key(pattern):
        return None
    return {pattern.format(value) for value in fields_of(pattern)}


def is_key(text: str) -> bool:
    """Say whether *text* is written like a key of one of the catalogue's areas."""
    areas = {key.partition(".")[0] for key in load_catalogue(FALLBACK)}
    return text.partition(".")[0] in areas and re.fullmatch(r"[a-z]+\.[a-z0-9_{}]+", text) is not None


def fields_of(pattern: str) -> set[str]:
    """Return what the field of a key pattern can be."""
    if pattern == "commands.help_{}":
        return {key.removeprefix("commands.help_") for key in declared_help()}
    assert pattern in FIELDS, f"say in FIELDS what {pattern!r} can be"
    return FIELDS[pattern]


def declared_help() -> set[str]:
    """Return the help keys of the commands that are declared with @command("name")."""
    found = set()
    for _, tree in modules():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "command"
                and node.args
            ):
                name = node.args[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    found.add(f"commands.help_{name.value}")
    return found


def calls_of_say() -> Iterator[tuple[str, ast.Call]]:
    """Yield every ``say(…)`` and the place where it stands."""
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say" and node.args:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_every_key_that_is_said_is_in_the_catalogue() -> None:
    """A misspelt key would only be noticed by the person who should have read the sentence."""
    known = load_catalogue(FALLBACK).keys()
    for place, call in calls_of_say():
        keys = keys_of(call.args[0])
        assert keys is None or keys <= known, f"{place}: {sorted(keys - known)}"


def test_no_sentence_is_said_without_a_language() -> None:
    """Whoever forgets it speaks English to everybody, and no test in English would tell."""
    forgotten = [
        place
        for place, call in calls_of_say()
        if keys_of(call.args[0]) and len(call.args) < 2 and not any(each.arg == "language" for each in call.keywords)
    ]
    assert not forgotten, "say whose chat it is"


def test_every_sentence_gets_the_fields_it_names() -> None:
    """A missing field would raise in the middle of telling somebody something."""
    for place, call in calls_of_say():
        given = {keyword.arg for keyword in call.keywords} - {"language"}
        if None in given:
            continue  # **fields: only a run can know
        for key in keys_of(call.args[0]) or ():
            named = {name for _, name, _, _ in Formatter().parse(load_catalogue(FALLBACK)[key]) if name}
            # Sentences without fields pass as they are, and one pattern may serve several sentences.
            assert named <= given, f"{place}: {key} needs {sorted(named - {str(name) for name in given})}"


def test_every_sentence_of_the_catalogue_is_used() -> None:
    """A sentence nobody says is a promise nobody keeps."""
    used: set[str] = set()
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                used |= keys_of(node) or set()
    page = "\n".join(
        path.read_text("utf-8") for path in (ROOT / "channels/web/page").iterdir() if path.suffix != ".css"
    )
    # The page is given the whole area and uses names without it, some made of a prefix and a state.
    made = tuple(re.findall(r"words\[`([a-z_]+)\$\{", page))
    area = {key.removeprefix("web.") for key in load_catalogue(FALLBACK) if key.startswith("web.")}
    used |= {f"web.{name}" for name in area if name.startswith(made) or re.search(rf"\b{name}\b", page)}
    assert sorted(load_catalogue(FALLBACK).keys() - used) == []


def test_every_area_of_the_catalogue_is_read() -> None:
    """A module of sentences that gateway/i18n/__init__.py does not name would be silent."""
    areas = {path.stem for path in (ROOT / "gateway/i18n" / FALLBACK).glob("*.py")} - {"__init__"}
    assert areas == {key.partition(".")[0] for key in load_catalogue(FALLBACK)}


def test_the_page_has_no_sentence_of_its_own() -> None:
    """What stands between the page's tags, in its labels, and in its scripts comes from the area `web`."""
    for path in sorted((ROOT / "channels/web/page").iterdir()):
        text = path.read_text("utf-8")
        if path.suffix == ".html":
            shown = re.findall(r">([^<>{}]+)<", re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL))
            shown += re.findall(r'(?:title|placeholder|alt|aria-label)="([^"]*)"', text)
        elif path.suffix == ".js":
            code = re.sub(r"//.*|/\*.*?\*/", "", text)
            shown = re.findall(r"""(?:textContent|placeholder|title|ariaLabel)\s*=\s*["'`]([^"'`]+)["'`]""", code)
        else:
            continue
        assert not [piece for piece in shown if sentences.is_sentence(piece)], path.name


def test_an_unknown_language_is_english_and_an_unknown_key_an_error() -> None:
    """Nobody is left without a sentence, and nobody is shown a key."""
    assert translate("commands.new", "xx") == translate("commands.new")
    with pytest.raises(KeyError):
        translate("commands.no_such_sentence")
