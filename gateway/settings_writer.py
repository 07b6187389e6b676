"""Writer of `parlour init` and the console: changes are merged into the settings file, and each secret gets a file."""

from __future__ import annotations

import difflib
import io
import json
import re
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from ruamel.yaml.tag import Tag

from gateway.durable_files import write_private
from gateway.errors import SettingsError, UserError
from gateway.home import Home, make_private
from gateway.preflight import home_mistake
from gateway.settings import InstalledPlugins, check_settings
from gateway.settings.setting_names import normalize_names, snake
from gateway.settings.setting_types import error_line, errors_by_path, explain_error
from gateway.settings.sources import HOME, find_file, find_lines, parse_yaml, read_secrets, read_text

Path_: TypeAlias = tuple[str, ...]  # of a setting: ("channels", "telegram", "token")
Value: TypeAlias = str | list[str]

_STAGING = ".init-"
_PLAIN = re.compile(r"[A-Za-z/~][A-Za-z0-9_./~-]*(:[/A-Za-z0-9][A-Za-z0-9_./~:-]*)?\Z")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_HEAD = "# Written by `parlour init`; yours to edit. All settings are in docs/settings.md. Secrets are in secrets/.\n"


@dataclass(slots=True)
class SettingChanges:
    """New settings by path; None removes a setting."""

    plain: dict[Path_, Value | None] = field(default_factory=dict)
    secret: dict[Path_, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.plain or self.secret)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A written file, and the settings written to it."""

    file: Path
    settings: tuple[str, ...]


class SettingsFileWriter:
    """Writes the settings file of the home and its secrets. Raises UserError where it must not write."""

    def __init__(self, path: Path, environment: Mapping[str, str], kinds: InstalledPlugins) -> None:
        self.home = Home(path)
        self._environment = environment
        self._kinds = kinds
        # Files that cannot be read or written are reported before the first question.
        mistake = home_mistake(path)
        if mistake:
            raise UserError(mistake)
        self.text()

    @property
    def file(self) -> Path:
        """The existing settings file, or the one to create; the target of a symbolic link."""
        return (find_file(self.home.path) or self.home.path / "parlour.yaml").resolve()

    def text(self) -> str:
        """Return the content of the settings file."""
        file = self.file
        if file.suffix == ".toml":
            raise UserError(
                f"{file} is TOML, which `parlour init` cannot write; edit it by hand (docs/settings.md),"
                " or convert it to parlour.yaml"
            )
        try:
            text = file.read_text("utf-8-sig")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            raise UserError(
                f"{file} cannot be read; make it readable to the user who runs Parlour, and save it as UTF-8"
            ) from None
        list(read_text(file, text))
        return text

    def preview(self, changes: SettingChanges) -> str:
        """Return the lines of the settings file that plain *changes* would remove and add, behind `-` and `+`.

        Raises SettingsError as `write` does; nothing is written.
        """
        before = self.text()
        text = merge_settings_text(self.file, before, changes, {})
        self._judge(changes, {}, text)
        lines = difflib.unified_diff(before.splitlines(), text.splitlines(), lineterm="", n=0)
        return "\n".join(each for each in lines if not each.startswith(("---", "+++", "@@")))

    def write(self, changes: SettingChanges) -> list[WrittenFile]:
        """Write *changes*, whole files only; return the written files.

        Raises SettingsError with every error that the settings would then have; nothing is written in this case.
        """
        secrets = {path: self._secret_file(path) for path in changes.secret}
        text = merge_settings_text(self.file, self.text(), changes, secrets)
        self._judge(changes, secrets, text)
        make_private(self.home.path)
        written = []
        with _undisturbed():
            # Secrets first: a block whose secret is missing would not start.
            for path, value in changes.secret.items():
                make_private(self.home.secrets)
                write_private(secrets[path], value + "\n")
                written.append(WrittenFile(secrets[path], (".".join(path),)))
            if text != self.text() and (changes.plain or self.file.exists()):
                write_private(self.file, text)
                written.append(WrittenFile(self.file, tuple(".".join(path) for path in changes.plain)))
        return written

    def _secret_file(self, path: Path_) -> Path:
        """Return the file that holds the secret, in any spelling; otherwise the path of a new one."""
        for leaf in read_secrets(self.home.path):
            if normalize_names(leaf).path == path:
                return self.home.path / leaf.place
        return self.home.secrets / "__".join(path).replace("-", "_")

    def _judge(self, changes: SettingChanges, secrets: Mapping[Path_, Path], text: str) -> None:
        before = set(check_settings(self._environment, self._kinds).mistakes)
        with self._validate_staged(changes, secrets, text) as staging:
            report = check_settings({**self._environment, HOME: str(staging)}, self._kinds)
        wrong = [line.replace(str(staging), str(self.home.path)) for line in report.mistakes]
        new = [line for line in wrong if line not in before]
        if new:
            raise SettingsError("\n".join(new))

    @contextmanager
    def _validate_staged(self, changes: SettingChanges, secrets: Mapping[Path_, Path], text: str) -> Iterator[Path]:
        """A home beside the home, as it would be: the settings are judged before they are written."""
        make_private(self.home.path)
        for left in self.home.path.glob(f"{_STAGING}*"):  # of an init that was killed
            shutil.rmtree(left, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=self.home.path))
        try:
            (staging / self.file.name).write_text(text, "utf-8")
            copied = staging / self.home.secrets.name
            copied.mkdir(mode=0o700)
            if self.home.secrets.is_dir():
                for file in self.home.secrets.iterdir():
                    if file.is_file() and not file.name.startswith("."):
                        shutil.copyfile(file, copied / file.name)
            for path, value in changes.secret.items():
                (copied / secrets[path].name).write_text(value, "utf-8")
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def merge_settings_text(file: Path, text: str, changes: SettingChanges, secrets: Mapping[Path_, Path]) -> str:
    """Return *text* with *changes* applied and everything else unchanged, comments included.

    Raises UserError for a file that cannot be edited safely, and for a setting to remove that is not in it.
    """
    if file.suffix == ".json":
        tree = json.loads(text) if text.strip() else {}
        _apply(tree, changes, secrets)
        return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
    by_hand = f"the structure of {file} cannot be edited safely; nothing was changed in it, add by hand: "
    by_hand += ", ".join(".".join(path) for path in changes.plain)
    expected = parse_yaml(text) or {}
    _apply(expected, changes, secrets)
    removed = [path for path, value in changes.plain.items() if value is None]
    changes = SettingChanges(
        {path: value for path, value in changes.plain.items() if value is not None}, changes.secret
    )
    try:
        for path in removed:
            text = _remove_lines(text, path)
        if removed and not changes:
            if (parse_yaml(text) or {}) != expected:
                raise UserError(by_hand)
            return text
        yaml = _round_trip(text)
        tree = yaml.load(text)
        if tree is None:  # comments alone
            tree, text = CommentedMap(), text if text.strip() else _HEAD
            head = text.rstrip("\n") + "\n"
        else:
            head = ""
        _apply(tree, changes, secrets)
        out = io.StringIO()
        if tree:
            yaml.dump(tree, out)
    except (YAMLError, ValueError, TypeError):
        raise UserError(by_hand) from None
    if (parse_yaml(head + out.getvalue()) or {}) != expected:
        raise UserError(by_hand)
    return head + out.getvalue()


def _apply(tree: Any, changes: SettingChanges, secrets: Mapping[Path_, Path]) -> None:
    for path, value in changes.plain.items():
        if value is None:
            _remove(tree, path)
            continue
        group = _group(tree, path)
        group[_spelling(group, path)] = _scalar(value, group)
    for path in changes.secret:
        # A secret is removed from the file; its line remains for the comments beside it.
        found = _existing(tree, path)
        if found is not None:
            found[_spelling(found, path)] = None
        pointer = (*path[:-1], f"{path[-1]}_file")
        found = _existing(tree, pointer)
        if found is not None:
            found[_spelling(found, pointer)] = _scalar(str(secrets[path]), found)


def _remove(tree: Any, path: Path_) -> Path_:
    """Remove the setting *path* and the groups that are empty without it; return the path of the outermost of them."""
    group = _existing(tree, path)
    if group is None:
        raise UserError(f"{'.'.join(path)} is not in the settings file, so there is no line to remove")
    del group[_spelling(group, path)]
    while not group and len(path) > 1:
        path = path[:-1]
        group = _group(tree, path)
        del group[_spelling(group, path)]
    return path


def _remove_lines(text: str, path: Path_) -> str:
    """Return YAML *text* without the lines of the setting *path* and of the groups that are empty without it.

    Lines that hold a comment alone stay. A setting within braces shares its line: there the whole file is written
    without it. Raises YAMLError for invalid YAML.
    """
    before = parse_yaml(text) or {}
    path = _remove(parse_yaml(text) or {}, path)
    spelled = [_spelling(_group(before, path[:depth]), path[:depth]) for depth in range(1, len(path) + 1)]
    found = find_lines(text, spelled)
    if found is None:
        yaml, out = _round_trip(text), io.StringIO()
        tree = yaml.load(text)
        del _group(tree, path)[spelled[-1]]
        yaml.dump(tree, out)
        return out.getvalue()
    lines = text.splitlines(keepends=True)
    cut = range(min(found), max(found) + 1)
    return "".join(
        line for n, line in enumerate(lines) if n not in cut or (n not in found and line.lstrip().startswith("#"))
    )


def _group(tree: Any, path: Path_) -> Any:
    here = tree
    for depth in range(1, len(path)):
        name = _spelling(here, path[:depth])
        if not isinstance(here.get(name), MutableMapping):
            here[name] = type(tree)()
        here = here[name]
    return here


def _existing(tree: Any, path: Path_) -> Any:
    """Return the group that holds *path*, or None where it does not stand there."""
    here = tree
    for depth in range(1, len(path)):
        here = here.get(_spelling(here, path[:depth]))
        if not isinstance(here, MutableMapping):
            return None
    return here if _spelling(here, path) in here else None


def _spelling(group: Mapping[Any, Any], path: Path_) -> Any:
    """Return the name as the file spells it (camelCase counts), otherwise as we do."""
    is_own_name = len(path) == 2 and path[0] in ("channels", "chats")
    for name in group:
        if (str(name) if is_own_name else snake(str(name))) == path[-1]:
            return name
    return path[-1]


def _scalar(value: Value, group: object) -> Any:
    if isinstance(value, list):
        return [_scalar(each, group) for each in value]
    is_plain = _PLAIN.match(value) and value.lower() not in _WORDS
    return value if is_plain or not isinstance(group, CommentedMap) else DoubleQuotedScalarString(value)


_NULL, _MERGE, _TEXT = (Tag(suffix=f"tag:yaml.org,2002:{name}") for name in ("null", "merge", "str"))


class _TextOnly(VersionedResolver):
    """Loader that keeps scalars as text, as our own reader does: 0123 and off are written back unchanged."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the tag of a node that names none."""
        if kind is ScalarNode and implicit[0]:
            if value in ("", "~", "null", "Null", "NULL"):
                return _NULL
            return _MERGE if value == "<<" else _TEXT
        return super().resolve(kind, value, implicit)


def _round_trip(text: str) -> YAML:
    yaml = YAML()
    yaml.Resolver = _TextOnly
    yaml.preserve_quotes = True
    yaml.width = 10_000
    depth = re.search(r"^[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*( +)[^\s#-]", text, re.MULTILINE)
    dash = re.search(r"^( *)[^\s#-][^\n]*:[ \t]*(?:#[^\n]*)?\n( *)- ", text, re.MULTILINE)
    offset = max(0, len(dash[2]) - len(dash[1])) if dash else 2
    yaml.indent(mapping=len(depth[1]) if depth else 2, sequence=offset + 2, offset=offset)
    return yaml


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait until the files stand."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def block_of(kind: str, present: Mapping[Path_, object]) -> str:
    """Return the name of the block of *kind*: the one there is, or the kind's own."""
    if any(path[:2] == ("channels", kind) for path in present):
        return kind
    names = (
        path[1] for path, value in present.items() if path[0] == "channels" and path[2:] == ("kind",) and value == kind
    )
    return next(names, kind)


def changes_of(group: Path_, answers: Mapping[str, str], *, secret: Iterable[str], model: Any = None) -> SettingChanges:
    """Return answers as settings changes; a value is written as a list where its model has a list."""
    changes = SettingChanges()
    for name, answer in answers.items():
        path = (*group, name)
        if name in secret:
            if answer:
                changes.secret[path] = answer
        elif isinstance(getattr(model, name, None), tuple):
            changes.plain[path] = [str(each) for each in getattr(model, name)]
        elif answer:
            changes.plain[path] = answer
    return changes


def error_lines(errors: ValidationError, values: Mapping[str, object]) -> list[str]:
    """Return a line per mistake."""
    return [
        error_line(".".join(path), explain_error(error, values.get(path[0]) if path else None))
        for path, error in errors_by_path(errors)
    ]


def names_of(files: Sequence[WrittenFile]) -> Iterator[str]:
    """Yield a line per file for the person at the terminal."""
    by_file: dict[Path, list[str]] = {}
    for each in files:
        names = by_file.setdefault(each.file, [])
        names += [name for name in each.settings if name not in names]
    for file, settings in by_file.items():
        yield f"{file}  ({', '.join(settings)})"
