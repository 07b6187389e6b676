"""Check the message catalogues and their use, or bring the translations up to date with the English template.

Run from the project root:

    python -m tests.messages           # `make messages`: write new sentences into every translation, mark outdated ones
    python -m tests.messages --check   # `make check`: every problem on a line; exit code 1 when there is one

A translation is outdated when the English sentence beside it is not the template's any more. It is marked ``fuzzy``,
with the sentence that it translated (``#|``), and the check fails until a person has looked at it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from string import Formatter

from agent.tasks.task import TaskState
from agent.tools.call_record import WORDED, CallOutcome
from agent.tools.rights import RefusalRule
from agent.turns.chat_profiles import ModelChoiceOrigin
from channels.kit.bodies import UploadRefusalReason
from channels.web.logins import LoginOutcome
from gateway.alerts.alert_state import REASONS, TURN_FAILURES
from gateway.errors import FailureCause, ModelAbility
from gateway.events import Role
from gateway.i18n import FALLBACK, LANGUAGES, CatalogueEntry, catalogue_path, parse_entries, read_catalogue
from gateway.i18n.failures import FAILURES
from gateway.ports.access import CapKind
from gateway.ports.channel import IntakeVerdict
from gateway.ports.journal import MessageOutcome
from gateway.settings.settings_model import ToolCapSettings

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "channels", "agent")
OTHERS = tuple(language for language in LANGUAGES if language != FALLBACK)
WIDTH = 120  # characters in a line of a catalogue

# The values of an f-string's field, so that each key it makes is known. A new pattern is entered here.
KEY_FIELDS = {
    "caps.{}": {cap.word for cap in CapKind},
    "caps.{}_calls": set(ToolCapSettings.model_fields),
    "usage.{}": {f"{how}_{cap.word}" for how in ("left", "spent") for cap in CapKind if not cap.is_own},
    "usage.left_{}_calls": set(ToolCapSettings.model_fields),
    "alerts.because_{}": {name for name, _ in REASONS} | {*TURN_FAILURES, "other"},
    "alerts.over_{}": {"channel", "delay", "model", "model_fault", "disk", "store", "memory", "cap", "promises"},
    "commands.ability_{}": {ability.value for ability in ModelAbility},
    "memory.{}_done": {"approve", "reject"},
    "memory.edit_{}": {"added", "removed", "replaced"},
    "approvals.{}": {"yes", "no"},
    "approvals.why_{}": {"untrusted", "many", "deleted"},
    "steps.{}": set(WORDED),
    "tools.outcome_{}": {outcome.value for outcome in CallOutcome if outcome is not CallOutcome.REFUSED},
    "tools.refused_{}": {rule.value for rule in RefusalRule},
    "tools.place_{}": {"page", "chapter", "sheet"},
    "reminders.{}": {"snooze_10", "snooze_60", "tomorrow", "stop", "resume"},
    "tasks.is_{}": {state.value for state in TaskState},
    "tasks.end_{}": {state.value for state in TaskState if state.is_over and state is not TaskState.STOPPED},
    "promises.kind_{}": {"answer", "call", "reminder", "task"},
    "promises.state_{}": {"waiting", "running", "failed", "silent", *(outcome.value for outcome in MessageOutcome)},
    "model.{}": {origin.value for origin in ModelChoiceOrigin},
    "settings.{}": {"everywhere", "block", "chosen"},
    "erasure.everything_{}": {"own", "chat"},
    "erasure.erased_{}": {"own", "chat"},
    "erasure.remains_{}": {"own", "chat"},
    "unknown_senders.{}": {"yes", "no"},
    "unknown_senders.decided_{}": {"let_in", "kept_out", "place_open", "place_shut"},
    "failures.{}": {failure.name for failure in FAILURES},
    "failures.cause_{}": {cause.value for cause in FailureCause if cause is not FailureCause.FILTERED},
    "frames.{}": {verdict.value for verdict in IntakeVerdict if verdict is not IntakeVerdict.ACCEPTED},
    "commands.only_{}": {role.value for role in Role if role is not Role.MEMBER},
    "web.upload_{}": {why.value for why in UploadRefusalReason},
    "web.login_{}": {outcome.value for outcome in LoginOutcome if outcome is not LoginOutcome.WELCOME},
}
# A command, a setting or our command line is typed in the same way in every language.
_TYPED = re.compile(r"(?<![\w/<])/[a-z][a-z-]+|--[a-z]+|PARLOUR_\w+|parlour(?: --?[a-z]+| [a-z]+)+(?=`)")


def problems() -> list[str]:
    """Return what is wrong with the catalogues and with the keys in the code, a line each."""
    template = read_entries(FALLBACK)
    return [
        *(f"{place}: no such key: {key}" for place, key in sorted(used_keys()) if key not in template),
        *(f"unused: {key}" for key in sorted(template.keys() - all_strings())),
        *(line for language in OTHERS for line in compare(language, template, read_entries(language))),
        *(f"{language}: {key}: {line}" for language in LANGUAGES for key, line in plural_problems(language)),
    ]


def read_entries(language: str) -> dict[str, CatalogueEntry]:
    """Return the entries of a catalogue by key; raise ValueError for a key that it has twice."""
    entries: dict[str, CatalogueEntry] = {}
    for entry in parse_entries(catalogue_path(language).read_text(encoding="utf-8")):
        if entry.key in entries:
            raise ValueError(f"{catalogue_path(language).name}: {entry.key} is there twice")
        entries[entry.key] = entry
    del entries[""]  # the header
    return entries


def compare(language: str, template: dict[str, CatalogueEntry], entries: dict[str, CatalogueEntry]) -> Iterator[str]:
    """Yield what *entries*, a translation, lacks, has too much, or has not followed of *template*."""
    for key in template.keys() | entries.keys():
        source, entry = template.get(key), entries.get(key)
        if entry is None:
            yield f"{language}: {key}: missing: make messages"
        elif source is None:
            yield f"{language}: {key}: not in the template: make messages"
        elif entry.source != source.source:
            yield f"{language}: {key}: the English sentence has changed: make messages, then translate it again"
        elif entry.is_fuzzy:
            yield f"{language}: {key}: outdated: translate it again, then remove `fuzzy` and the old sentence"
        elif not entry.translation:
            yield f"{language}: {key}: not translated"
        elif shape(entry.translation) != shape(source.source):
            yield f"{language}: {key}: other fields, commands, code, emphasis or list items than in English"


def plural_problems(language: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the field of each plural that has not as many texts as the language has forms."""
    catalogue = read_catalogue(language)
    for key, text in catalogue.messages.items():
        for name, specs in fields(text).items():
            for spec in specs:
                if "|" in spec and len(spec.split("|")) != catalogue.plural_count:
                    yield key, f"{{{name}}} needs {catalogue.plural_count} plural forms"


def fields(template: str) -> dict[str, set[str]]:
    """Return the fields of a template, each with its format specifications."""
    found: dict[str, set[str]] = {}
    for _, name, spec, conversion in Formatter().parse(template):
        if name is not None:
            assert not conversion
            found.setdefault(name, set()).add(spec or "")
    return found


def shape(template: str) -> tuple[object, ...]:
    """Return what all languages have in common: fields, what is typed, code, emphasis and lists."""
    marks = [template.count(mark) for mark in ("`", "**", "\n- ")]
    return set(fields(template)), set(_TYPED.findall(template)), marks


@cache
def modules() -> Sequence[tuple[Path, Sequence[ast.Call | ast.Constant | ast.JoinedStr]]]:
    """Return the calls and the strings of every module of the packages."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    kinds = ast.Call | ast.Constant | ast.JoinedStr
    trees = ((path, ast.walk(ast.parse(path.read_text("utf-8")))) for path in paths)
    return [(path, [node for node in nodes if isinstance(node, kinds)]) for path, nodes in trees]


@cache
def calls_of_translate() -> Sequence[tuple[str, ast.Call]]:
    """Return every ``translate(…)``, called by name or of what knows its chat's language, and its place."""
    found = []
    for path, nodes in modules():
        for node in nodes:
            match node:
                case (
                    ast.Call(func=ast.Name(id="translate"), args=[_, *_])
                    | ast.Call(func=ast.Attribute(attr="translate" | "reply" | "private_reply"), args=[_, *_])
                ):
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
    return found


def used_keys() -> Iterator[tuple[str, str]]:
    """Yield place and key of every ``translate(…)`` whose key is written out."""
    for place, call in calls_of_translate():
        for key in keys_of(call.args[0]) or ():
            yield place, key


def keys_of(node: ast.expr) -> set[str] | None:
    """Return the keys a literal or an f-string can be; None when the text begins with no area of the catalogue."""
    if isinstance(node, ast.IfExp):
        return (keys_of(node.body) or set()) | (keys_of(node.orelse) or set())
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if not isinstance(node, ast.JoinedStr):
        return None
    pattern = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if not is_key(pattern):
        return None
    return {pattern.format(value) for value in fields_of(pattern)}


def is_key(text: str) -> bool:
    """Return True if *text* is written like a key of one of the catalogue's areas."""
    return text.partition(".")[0] in areas() and re.fullmatch(r"[a-z_]+\.[a-z0-9_{}]+", text) is not None


@cache
def areas() -> frozenset[str]:
    """Return the areas of the catalogue."""
    return frozenset(key.partition(".")[0] for key in read_entries(FALLBACK))


def fields_of(pattern: str) -> set[str]:
    """Return the values that the field of a key pattern can have."""
    if pattern == "commands.help_{}":
        return {key.removeprefix("commands.help_") for key in declared_help()}
    if pattern not in KEY_FIELDS:
        raise ValueError(f"enter in KEY_FIELDS what {pattern!r} can be")
    return KEY_FIELDS[pattern]


@cache
def declared_help() -> frozenset[str]:
    """Return the help keys of the commands that are declared with @command("name")."""
    found = set()
    for _, nodes in modules():
        for node in nodes:
            match node:
                case ast.Call(func=ast.Name(id="command"), args=[ast.Constant(value=str(name)), *_]):
                    found.add(f"commands.help_{name}")
    return frozenset(found)


def all_strings() -> set[str]:
    """Return every text in the code that can be a key, those of the page included."""
    used: set[str] = set()
    for _, nodes in modules():
        for node in nodes:
            if isinstance(node, ast.Constant | ast.JoinedStr):
                used |= keys_of(node) or set()
    page = "\n".join(
        path.read_text("utf-8") for path in (ROOT / "channels/web/page").iterdir() if path.suffix in (".html", ".js")
    )
    # The page receives the whole area and uses names without it, some made of a prefix and a state.
    made = tuple(re.findall(r"words\[`([a-z_]+)\$\{", page))
    names = {key.removeprefix("web.") for key in read_entries(FALLBACK) if key.startswith("web.")}
    return used | {f"web.{name}" for name in names if name.startswith(made) or re.search(rf"\b{name}\b", page)}


def update(folder: Path) -> list[str]:
    """Bring the translations in *folder* up to date with its template; return the lines that say what to do."""
    from babel.messages.catalog import Catalog
    from babel.messages.pofile import denormalize, read_po, write_po

    def write(path: Path, catalogue: Catalog, header: str) -> None:
        for message in catalogue:
            message.flags -= {"python-format", "python-brace-format"}  # guessed; our plurals are not theirs
        with path.open("wb") as file:
            file.write(f"{header}\n\n".encode())
            write_po(file, catalogue, width=WIDTH, omit_header=True, include_previous=True)

    def read(path: Path) -> tuple[str, Catalog]:
        with path.open("rb") as file:
            return path.read_text("utf-8").partition("\n\n")[0], read_po(file)

    header, template = read(folder / f"{FALLBACK}.pot")
    write(folder / f"{FALLBACK}.pot", template, header)
    done = []
    for language in OTHERS:
        header, before = read(folder / f"{language}.po")
        known = {message.context: message for message in before if message.id}
        after = Catalog(locale=language)
        for source in filter(lambda message: message.id, template):
            old = known.get(source.context)
            if old is None:
                done.append(f"{language}: {source.context}: not translated")
                after.add(source.id, "", context=source.context, auto_comments=source.auto_comments)
                continue
            # Babel writes the previous sentence and reads it as comments.
            quoted = [line.removeprefix("| msgid ").removeprefix("| ") for line in old.user_comments if line[:1] == "|"]
            previous = denormalize("\n".join(quoted)) if quoted else ""
            is_outdated = bool(old.string) and old.id != source.id
            if is_outdated or not old.string:
                done.append(f"{language}: {source.context}: {'outdated' if is_outdated else 'not translated'}")
            is_marked = is_outdated or old.fuzzy
            after.add(
                source.id,
                old.string,
                context=source.context,
                flags={"fuzzy"} if is_marked else (),
                auto_comments=source.auto_comments,
                user_comments=[line for line in old.user_comments if line[:1] != "|"],
                previous_id=[previous or str(old.id)] if is_marked else [],
            )
        write(folder / f"{language}.po", after, header)
    return done


def main() -> int:
    """Check or update; return 1 when the check finds a problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="print every problem, write nothing")
    if parser.parse_args().check:
        lines = problems()
        print("\n".join(lines) or "catalogues: every key is used, every translation is up to date")
        return int(bool(lines))
    print("\n".join(update(catalogue_path(FALLBACK).parent)) or "every translation is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
