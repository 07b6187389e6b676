"""Every language says what English says: all of it, with the same fields, and in sentences that can be filled in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from babel.messages.pofile import read_po
from hypothesis import given
from hypothesis import strategies as st

from gateway.i18n import (
    FALLBACK,
    LANGUAGES,
    CatalogueEntry,
    accepted_languages,
    catalogue_path,
    list_languages,
    load_catalogue,
    own_name,
    parse_entries,
    parse_language,
    resolve_language,
    translate,
)
from gateway.i18n.formats import format_day, format_file_size, format_moment, format_time_of_day
from tests import messages

OTHERS = [language for language in LANGUAGES if language != FALLBACK]
_LONGEST_MARK = 100  # characters: Telegram keeps 120 free for it in every part, Discord 110
_LONGEST_STATUS = 50  # of Slack's assistant.threads.setStatus
_LONGEST_LABEL = 40  # gateway.events.MessageButton, less what numbers a button
_LABELS = (
    "approvals.yes",
    "approvals.no",
    "account_links.yes",
    "account_links.no",
    "unknown_senders.yes",
    "unknown_senders.no",
    "model.as_before",
)


@pytest.mark.parametrize("language", OTHERS)
def test_a_language_says_all_that_english_says_and_nothing_else(language: str) -> None:
    """Who chose a language is not spoken to in another; a sentence that English lost is nobody's any more."""
    assert sorted(load_catalogue(FALLBACK).keys() - load_catalogue(language).keys()) == []
    assert sorted(load_catalogue(language).keys() - load_catalogue(FALLBACK).keys()) == []


@pytest.mark.parametrize("language", OTHERS)
def test_the_fields_and_what_is_typed_are_those_of_english(language: str) -> None:
    """A field that English does not give would raise in the middle of a sentence; a command is the same everywhere."""
    unlike = {
        key: text
        for key, template in load_catalogue(FALLBACK).items()
        if (text := load_catalogue(language).get(key)) and messages.shape(text) != messages.shape(template)
    }
    assert unlike == {}


ENTRY = CatalogueEntry(key="a.b", source="Stop {count} with `/stop`.", translation="", is_fuzzy=False)
FAULTS = {
    "missing": {},
    "not in the template": {"a.b": replace(ENTRY, translation="{count} mit `/stop`."), "a.old": ENTRY},
    "has changed": {"a.b": replace(ENTRY, source="End {count} with `/stop`.", translation="{count} mit `/stop`.")},
    "outdated": {"a.b": replace(ENTRY, translation="{count} mit `/stop`.", is_fuzzy=True)},
    "not translated": {"a.b": ENTRY},
    "other fields": {"a.b": replace(ENTRY, translation="{number} mit `/stop`.")},
    "code": {"a.b": replace(ENTRY, translation="{count} mit /stop.")},
    "commands": {"a.b": replace(ENTRY, translation="{count} mit `/halt`.")},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_sees_each_fault_of_a_translation(fault: str) -> None:
    """Missing, left over, behind a reworded English sentence, marked, empty, or with another field or command."""
    (line,) = messages.compare("de", {"a.b": ENTRY}, FAULTS[fault])
    assert line.startswith("de: a.")
    assert fault in line


def test_a_reworded_sentence_marks_its_translations_and_a_new_one_is_added(tmp_path: Path) -> None:
    """`make messages` keeps the old translation, marked and with what it translated; the others it leaves alone."""
    shutil.copytree(catalogue_path(FALLBACK).parent, tmp_path, dirs_exist_ok=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert messages.update(tmp_path) == []
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before

    english = (tmp_path / "en.pot").read_text("utf-8")
    reworded = english.replace('msgctxt "console.bye"\nmsgid "Bye."', 'msgctxt "console.bye"\nmsgid "So long."')
    added = f'{reworded}\nmsgctxt "console.late"\nmsgid "It is late."\nmsgstr ""\n'
    (tmp_path / "en.pot").write_text(added, "utf-8")
    assert sorted(messages.update(tmp_path)) == sorted(
        line for each in OTHERS for line in (f"{each}: console.bye: outdated", f"{each}: console.late: not translated")
    )
    german = (tmp_path / "de.po").read_text("utf-8")
    assert '#, fuzzy\n#| msgid "Bye."\nmsgctxt "console.bye"\nmsgid "So long."\nmsgstr "Bis bald."' in german
    entries = {entry.key: entry for entry in parse_entries(german)}
    assert entries["console.bye"].is_fuzzy
    assert messages.update(tmp_path) == [f"{each}: console.late: not translated" for each in OTHERS]
    assert (tmp_path / "de.po").read_text("utf-8") == german
    (tmp_path / "de.po").write_text(german.replace("#, fuzzy\n", ""), "utf-8")
    messages.update(tmp_path)
    assert '"Bye."' not in (tmp_path / "de.po").read_text("utf-8")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_catalogues_are_read_as_the_formats_own_tools_read_them(language: str) -> None:
    """Quotes, escapes, comments and folded lines: our reader and Babel's find the same sentences."""
    with catalogue_path(language).open("rb") as file:
        theirs = {message.context: message for message in read_po(file) if message.id}
    ours = {entry.key: entry for entry in parse_entries(catalogue_path(language).read_text("utf-8")) if entry.key}
    assert {key: (entry.source, entry.translation) for key, entry in ours.items()} == {
        key: (message.id, message.string) for key, message in theirs.items()
    }


@given(count=st.sampled_from([0, 1, 2, 5, 1_000, 2_026, 1_234_567]), word=st.text(max_size=20))
def test_every_sentence_of_every_language_can_be_said(count: int, word: str) -> None:
    """Whatever number or word a field takes, the sentence comes out whole: no field left, no sign of a plural."""
    for language in LANGUAGES:
        for key, template in load_catalogue(language).items():
            named = messages.fields(template)
            given = {name: count if any(named[name]) else word for name in named}
            said = translate(key, language, **given)
            assert said, (language, key)
            if named and not any(sign in word for sign in "{}|#"):
                assert not re.search(r"[{}|]|#(?! )", said), (language, key, said)


def test_one_and_several_have_their_nouns() -> None:
    """A count stands with the right noun in each language, and is written as it is written there."""
    stopped = {
        "en": ("1 waiting message was discarded", "2 waiting messages were discarded", "12,345 waiting messages"),
        "de": ("1 wartende Nachricht wurde verworfen", "2 wartende Nachrichten wurden", "12.345 wartende Nachrichten"),
        "es": ("descartó 1 mensaje", "descartaron 2 mensajes", "descartaron 12\u202f345 mensajes"),
        "zh": ("丢弃了 1 条", "丢弃了 2 条", "丢弃了 12,345 条"),
    }
    for language, expected in stopped.items():
        for count, words in zip((1, 2, 12_345), expected, strict=True):
            assert words in translate("commands.stopped_queue", language, queued=count)


def test_days_times_spans_and_sizes_are_the_languages() -> None:
    """What is shown of a moment is local, and in the order that its readers expect."""
    at = datetime(2026, 3, 29, 0, 59, tzinfo=UTC)  # a minute before the clocks of Berlin go forward
    assert format_moment(at, "Europe/Berlin") == "2026-03-29 01:59"
    assert format_moment(at + timedelta(minutes=1), "Europe/Berlin", "de") == "29.03.2026 03:00"
    assert format_moment(at, "Pacific/Kiritimati", "es") == "29/03/2026 14:59"
    assert format_moment(at, "Asia/Kolkata", "zh") == "2026年3月29日 06:29"
    assert format_time_of_day(at, "Europe/Berlin", "de") == "01:59 Uhr"
    assert format_day(date(2026, 1, 2), "de") == "02.01.2026"
    assert [format_file_size(1_550_000, each) for each in LANGUAGES] == ["1.6 MB", "1,6 MB", "1,6 MB", "1.6 MB"]


def test_what_a_language_lacks_is_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence without a translation is said in English, nouns and numbers included."""
    lacking = {key: text for key, text in load_catalogue("de").items() if key != "commands.stopped_queue"}
    monkeypatch.setattr(
        "gateway.i18n.load_catalogue", lambda language: lacking if language == "de" else load_catalogue("en")
    )
    assert translate("commands.stopped_queue", "de", queued=1_000) == (
        "1,000 waiting messages were discarded. No answer was running."
    )
    assert translate("commands.stopped_turn", "de") == "Abgebrochen."


@pytest.mark.parametrize("language", LANGUAGES)
def test_short_sentences_are_short_in_every_language(language: str) -> None:
    """A mark joins a part that was cut without it, a status and a button have little room."""
    assert len(translate("delivery.may_repeat", language).encode("utf-16-le")) // 2 <= _LONGEST_MARK
    assert len(translate("slack.thinking", language)) <= _LONGEST_STATUS
    for key in _LABELS:
        assert 0 < len(translate(key, language)) <= _LONGEST_LABEL


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("de", "de"), ("DE", "de"), ("de-AT", "de"), ("zh_CN", "zh"), ("es-419", "es"), ("Deutsch", "de"),
        ("german", "de"), ("Alemán", "de"), ("aleman", "de"), ("español", "es"), ("Spanisch", "es"), ("中文", "zh"),
        ("chino", "zh"), (" English ", "en"), ("pt-BR", ""), ("klingon", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_language_is_known_by_code_region_and_name(text: str, language: str) -> None:
    """People write what they call it, in whatever language they have; a region is its language."""
    assert parse_language(text) == language


@pytest.mark.parametrize(
    ("header", "languages"),
    [
        ("de-AT,de;q=0.9,en;q=0.8", ["de-AT", "de", "en"]),
        ("en;q=0.1, es ; q=0.5,zh", ["zh", "es", "en"]),
        ("de;q=0,es;q=x,en;q=nan", []),
        ("de;level=1", ["de"]),
        ("", [""]),
        (",".join(["fr;q=0.1"] * 20 + ["de"]), ["fr"] * 20),
        ("x" * 1_000 + ",de", ["x" * 1_000]),
    ],
)
def test_a_browser_s_languages_are_read_in_its_order(header: str, languages: list[str]) -> None:
    """By weight, in the order of the header where weights are equal; 20 codes and 1,000 characters are read."""
    assert accepted_languages(header) == languages


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences_of_the_page_are_plain_text(language: str) -> None:
    """They are shown as they are: marks of Markdown would be read by people."""
    page = {key: translate(key, language) for key in load_catalogue(FALLBACK) if key.startswith("web.")}
    assert not [key for key, sentence in page.items() if "`" in sentence or "**" in sentence]


def test_the_languages_there_are_can_be_listed() -> None:
    """Each is named by itself, and is a package of its own that knows its own name."""
    assert [resolve_language(code) for code in LANGUAGES] == list(LANGUAGES)
    assert list_languages() == "de (Deutsch), en (English), es (español), zh (简体中文)"
    assert own_name("de") == "Deutsch"


def test_a_language_that_nobody_speaks_is_not_loaded() -> None:
    """English costs no start-up or memory for the others."""
    check = (
        "import sys, gateway.i18n as i; read = i.read_catalogue; i.read_catalogue = lambda language:"
        " read(language) if language == 'en' else sys.exit(1); i.translate('commands.new')"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0  # noqa: S603 - our own words
