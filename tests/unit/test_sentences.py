"""Every sentence that a person can see is in the catalogue, and the check of the catalogue sees the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gateway.i18n import FALLBACK, load_catalogue, translate
from tests import messages, sentences

ROOT = Path(__file__).resolve().parents[2]


def test_no_sentence_stands_outside_the_catalogue() -> None:
    """What people read is written in one place, so that it has one voice and can be translated."""
    out_of_place = [
        f"{path.relative_to(ROOT)}:{sentence.line}: {sentence.text!r}"
        for path in sentences.files(ROOT)
        for sentence in sentences.find(path.read_text("utf-8"), has_frames=path.relative_to(ROOT).parts[0] != "agent")
    ]
    assert not out_of_place, "move it to gateway/i18n/locales/en.pot and translate() it"


PLANTED = [
    'OutboundMessage(id=i, key=k, text="I am very sorry")',
    "CommandReply(text=f'There are {n} of them')",
    'events.OutboundMessage(text="Please wait " + "a moment")',
    'CommandReply(text="Not now, sorry" if busy else translate("a.b"))',
    'SORRY = "I am very sorry"\nCommandReply(text=SORRY)',
    'line = ("It is " "late now")\nIntakeResult(verdict=v, line=line)',
    'frame = {"type": "trouble", "line": "That went badly wrong"}',
    'CommandReply(text="\\n".join(["These are my commands", *lines]))',
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
        'CommandReply(text=translate("commands.new", language))',
        'log.info("turn.answered in good time")',
        'raise ToolFailed("no file of that name")',
        'OutboundMessage(text=f"{one} … {two}")',
        'translate(f"failures.{name}")',
        '"""A module says what it promises."""',
    ],
)
def test_what_is_no_sentence_for_people_is_left_alone(source: str) -> None:
    """Catalogue keys, logs, a tool's words to the model and docstrings are not for people in a chat."""
    assert not sentences.find(source, has_frames=True)


def test_operators_lines_may_stand_where_they_arise(tmp_path: Path) -> None:
    """Settings, doctor, the CLI and logs speak English to whoever runs the gateway (ADR 2)."""
    for name in ("gateway/cli/run.py", "gateway/doctor.py", "gateway/settings/load.py", "gateway/i18n/failures.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('CommandReply("This is for the operator")')
    assert not list(sentences.files(tmp_path))


def test_the_checker_reads_the_calls_that_there_are() -> None:
    """It would find nothing wrong in calls that it does not see."""
    assert len(messages.calls_of_translate()) > 100
    assert len(set(messages.used_keys())) > 150


def test_no_sentence_is_said_without_a_language() -> None:
    """A call that forgets the language speaks English to everyone, and no test in English would notice."""
    forgotten = [
        place
        for place, call in messages.calls_of_translate()
        if isinstance(call.func, ast.Name)  # a method knows its chat's language
        and messages.keys_of(call.args[0])
        and len(call.args) < 2
        and not any(each.arg == "language" for each in call.keywords)
    ]
    assert not forgotten, "pass the chat's language"


def test_every_sentence_gets_the_fields_it_names() -> None:
    """A missing field would raise in the middle of a reply."""
    template = load_catalogue(FALLBACK)
    for place, call in messages.calls_of_translate():
        given = {keyword.arg for keyword in call.keywords} - {"language"}
        if None in given:
            continue  # **fields: only a run can know
        for key in messages.keys_of(call.args[0]) or ():
            named = set(messages.fields(template[key]))
            # Sentences without fields pass as they are, and one pattern may serve several sentences.
            assert named <= given, f"{place}: {key} needs {sorted(named - {str(name) for name in given})}"


def test_the_page_has_no_sentence_of_its_own() -> None:
    """What stands between the page's tags, in its labels, and in its scripts comes from the area `web`."""
    for path in sorted((ROOT / "channels/web/page").iterdir()):
        if path.is_dir() or path.suffix == ".png":
            continue  # vendored, which is their authors' own; or a picture
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
