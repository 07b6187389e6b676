"""Sources of settings, each read into leaves that remember their origin.

A leaf is a path of names as written, a value, and a description of its origin. Only unreadable
sources are errors here; values are validated later. YAML is read as people mean it: `off` is a word, `0123` is an id,
and only `null` is nothing.

The sources of pydantic-settings are not used: they do not keep where a value was written, take the last of two equal
keys without a warning, suggest nothing for an unknown name, and quote values, which may be secrets, in errors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from gateway.errors import SettingsError
from gateway.installation import ownership_hint
from gateway.settings.setting_types import DuplicateKey


class _PlainTextLoader(yaml.SafeLoader):
    """Loads every plain scalar as text; pydantic parses numbers and booleans."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the library's own class attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("null", "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _mapping(loader: _PlainTextLoader, node: yaml.MappingNode) -> dict[object, object]:
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
    for name in names:
        if names.count(name) > 1:
            raise DuplicateKey(name)
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


_PlainTextLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


class InvalidYaml(ValueError):
    """The text is not valid YAML at line *lineno*."""

    def __init__(self, lineno: int | None) -> None:
        super().__init__("no YAML")
        self.lineno = lineno


def parse_yaml(text: str) -> object:
    """Return the parsed *text*; raise InvalidYaml, a ValueError with the line."""
    try:
        return yaml.load(text, Loader=_PlainTextLoader)  # noqa: S506 - a SafeLoader with fewer resolvers
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark
        raise InvalidYaml(mark.line + 1 if mark else None) from None
    except yaml.YAMLError:
        raise InvalidYaml(None) from None


def find_lines(text: str, names: Sequence[str]) -> frozenset[int] | None:
    """Return the numbers, from 0, of the lines of the setting *names* in *text*, a name for each level.

    Lines of comments and blanks between the items of a group are not among them. None = it shares a line with others
    within braces. Raises KeyError if the setting is not there, and yaml.YAMLError for invalid YAML.
    """
    # A literal text that ends with the file ends on the line after it, as any other.
    node, line = yaml.compose(f"{text}\n", Loader=_PlainTextLoader), 0
    for name in names:
        if not isinstance(node, yaml.MappingNode):
            raise KeyError(name)
        if node.flow_style:
            return None
        pairs = {key.value: (key.start_mark.line, value) for key, value in node.value}
        line, node = pairs[name]
    return frozenset({line, *_lines_of(node)})


def _lines_of(node: yaml.Node | None) -> Iterator[int]:
    if isinstance(node, yaml.CollectionNode) and not node.flow_style:
        for child in node.value:
            for each in child if isinstance(child, tuple) else (child,):
                yield from _lines_of(each)
        return
    if node is None:
        return
    # The end of a literal or folded text is the beginning of the line after it.
    is_block = isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")
    yield from range(node.start_mark.line, node.end_mark.line + (0 if is_block else 1))


PREFIX = "PARLOUR_"
HOME = "PARLOUR_HOME"
_NOT_OURS = "PARLOUR_TEST_"  # what the project's own tests read
FILE_NAMES = ("parlour.yaml", "parlour.yml", "parlour.json", "parlour.toml")
SECRETS = "secrets"
_LARGEST = 1_048_576  # bytes of a settings file; more is a mistake, not a configuration


@dataclass(frozen=True, slots=True)
class SettingLeaf:
    """One value where it was written."""

    path: tuple[str, ...]
    value: object
    place: str  # PARLOUR_WEB__PORT, or "web.port in parlour.yaml"
    is_environment: bool = False


def read_environment(environment: Mapping[str, str]) -> Iterator[SettingLeaf]:
    """Yield what the variables with our prefix say; PARLOUR_HOME is not among them."""
    for name, value in sorted(environment.items()):
        upper = name.upper()
        if upper.startswith(PREFIX) and upper != HOME and not upper.startswith(_NOT_OURS):
            yield from _from_name(upper.removeprefix(PREFIX), value, name)


def read_secrets(home: Path) -> Iterator[SettingLeaf]:
    """Yield each file of the home's secrets folder; its name is that of the variable, with or without prefix."""
    folder = home / SECRETS
    try:
        files = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as wrong:
        raise SettingsError(f"{folder} cannot be read ({wrong.strerror}); {_owner_hint(home)}") from None
    for file in files:
        if file.is_file() and not file.name.startswith("."):
            name = file.name.upper().removeprefix(PREFIX)
            yield from _from_name(name, read_secret_file(file, f"{SECRETS}/{file.name}"), f"{SECRETS}/{file.name}")


def read_secret_file(file: Path, place: str) -> str:
    """Return the one line a secret's file holds, its line end removed."""
    try:
        return read_utf8(file, mend="correct the path or its permissions").rstrip("\r\n")
    except SettingsError as wrong:
        raise SettingsError(f"{place}: {wrong}") from None


def read_utf8(file: Path, *, mend: str) -> str:
    """Return the text of *file*. Raises SettingsError, with *mend* as the remedy where it cannot be read."""
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is not UTF-8; save it as UTF-8") from None
    except OSError as wrong:
        raise SettingsError(f"{file} cannot be read ({wrong.strerror}); {mend}") from None


def _owner_hint(home: Path) -> str:
    back = ownership_hint(home, os.geteuid(), os.getegid(), os.environ)
    return f"make the user who runs Parlour its owner: {back}"


def find_file(home: Path) -> Path | None:
    """Return the home's settings file; two of them are a mistake."""
    found = [home / name for name in FILE_NAMES if (home / name).exists()]
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise SettingsError(f"{home} contains {names}; keep only one of them")
    return found[0] if found else None


def read_file(file: Path) -> Iterator[SettingLeaf]:
    """Yield the leaves of a settings file."""
    with suppress(OSError):  # the reading below says why
        if file.stat().st_size > _LARGEST:
            raise SettingsError(f"{file} is larger than 1 MB, too large for a settings file")
    yield from read_text(file, read_utf8(file, mend=_owner_hint(file.parent)))


def read_text(file: Path, text: str) -> Iterator[SettingLeaf]:
    """Yield the leaves of a settings file's *text*; the file's name says its format."""
    tree = _parse(file, text)
    if tree is None:
        return
    if not isinstance(tree, dict):
        raise SettingsError(f"{file} must contain names with values, such as `llm:` with `model:` below it")
    yield from _leaves(tree, (), file.name)


def _parse(file: Path, text: str) -> object:
    try:
        if file.suffix == ".json":
            return json.loads(text, object_pairs_hook=_once) if text.strip() else None
        if file.suffix == ".toml":
            import tomllib

            return tomllib.loads(text)
        from gateway.settings.sources import parse_yaml

        return parse_yaml(text)
    except RecursionError:
        raise SettingsError(f"{file} is nested too deeply for a settings file") from None
    except ValueError as wrong:
        # Parsers may quote the line that is wrong, and a line may hold a secret: only the position is told.
        raise SettingsError(f"{file} cannot be read as {file.suffix[1:].upper()}: {_position(wrong)}") from None


def _position(error: ValueError) -> str:
    if isinstance(error, DuplicateKey):
        return f"{error} is set twice; keep one"
    line = getattr(error, "lineno", None)
    if line is None and "(at line " in str(error):
        line = str(error).rpartition("(at line ")[2].partition(",")[0]
    return f"fix line {line}" if line else "fix its syntax"


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise DuplicateKey(name)
        found[name] = value
    return found


def _from_name(name: str, value: str, place: str) -> Iterator[SettingLeaf]:
    path = tuple(part.lower() for part in name.split("__"))
    if value.lstrip().startswith("{"):
        try:
            tree = json.loads(value, object_pairs_hook=_once)
        except ValueError:
            raise SettingsError(
                f"{place} looks like JSON, but is not valid JSON; check its braces and quotes"
            ) from None
        yield from (replace(leaf, is_environment=True) for leaf in _leaves(tree, path, place))
        return
    yield SettingLeaf(path, value, place, is_environment=True)


def _leaves(tree: Mapping[object, object], path: tuple[str, ...], file: str) -> Iterator[SettingLeaf]:
    for name, value in tree.items():
        here = (*path, str(name))
        if isinstance(value, dict) and value:
            yield from _leaves(value, here, file)
        else:
            yield SettingLeaf(here, value, f"{'.'.join(here)} in {file}")
