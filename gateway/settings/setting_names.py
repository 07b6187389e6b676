"""Names of settings: spelling, known and renamed ones, and the leaf or the error line of each name as it is written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from gateway.errors import SettingsError
from gateway.settings.channel_blocks import ALWAYS_THERE, BLOCK_NAME, ChannelSettings, InstalledPlugins
from gateway.settings.chat_settings import ChatSettings
from gateway.settings.setting_types import split_list
from gateway.settings.settings_model import Settings
from gateway.settings.sources import SettingLeaf, read_secret_file

# A setting once released is never unknown: old dotted name -> its successor. The value moves along.
RETIRED: Mapping[str, str] = {
    "agents.defaults.dream.model": "agents.defaults.dream.model_override",
}

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def snake(name: str) -> str:
    """Return camelCase as snake_case; snake_case is unchanged."""
    return _HUMP.sub("_", name).lower() if name != name.lower() else name


def group_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the model of a field that is a group of settings; None for a plain one."""
    annotation = model.model_fields[name].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def entries_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the model of each entry where a field maps names of the operator's to groups of settings."""
    annotation = model.model_fields[name].annotation
    if get_origin(annotation) is not Mapping:
        return None
    entry = get_args(annotation)[1]
    return entry if isinstance(entry, type) and issubclass(entry, BaseModel) else None


def is_secret(model: type[BaseModel], name: str) -> bool:
    """Return True if a field holds a secret, so that `<name>_file` exists too."""
    field = model.model_fields.get(name)
    return field is not None and _mentions_secret(field.annotation)


def _mentions_secret(annotation: Any) -> bool:
    if annotation is SecretStr:
        return True
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return any(_mentions_secret(part) for part in get_args(annotation))
    return False


def known_paths(blocks: Mapping[str, type[BaseModel]]) -> Iterator[str]:
    """Yield every known dotted name: the whole tree, and the fields of the blocks there are."""
    yield from (path for path in _walk(Settings, "") if path not in ("home", "channels", "chats"))
    for name, model in blocks.items():
        yield from _walk(model, f"channels.{name}.")


def _walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name in model.model_fields:
        group = group_of(model, name)
        if group is not None:
            yield from _walk(group, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
            if is_secret(model, name):
                yield f"{prefix}{name}_file"


def environment_name(path: str) -> str:
    """Return the environment's name of a dotted path."""
    return "PARLOUR_" + path.replace("-", "_").replace(".", "__").upper()


def suggest_name(name: str, siblings: Iterable[str], everything: Iterable[str]) -> str:
    """Return the dotted name that *name* was probably meant to be, or ""."""
    parent, dot, last = name.rpartition(".")
    near = difflib.get_close_matches(last, list(siblings), n=1, cutoff=0.7)
    if near:
        return f"{parent}{dot}{near[0]}"
    flat = {path.replace(".", "_"): path for path in everything}
    found = difflib.get_close_matches(name.replace(".", "_"), list(flat), n=1, cutoff=0.6)
    return flat[found[0]] if found else ""


Blocks = Mapping[str, type[ChannelSettings]]
_MODELS = ("llm", "models")
_BY_NAME = (_MODELS, ("tools", "rights"))  # groups whose keys are names


def normalize_names(leaf: SettingLeaf) -> SettingLeaf:
    """Return the leaf with its names spelled as the models spell them; names of the operator's keep theirs."""
    path = list(leaf.path)
    for at, name in enumerate(path):
        is_name = (at == 1 and path[0] in ("channels", "chats", "profiles")) or (
            at == 2 and tuple(path[:2]) in _BY_NAME
        )
        if not is_name:
            path[at] = snake(name)
        elif leaf.is_environment and path[0] == "channels":
            path[at] = name.replace("_", "-")
    return replace(leaf, path=tuple(path))


def models_of(sources: Sequence[Sequence[SettingLeaf]]) -> list[list[SettingLeaf]]:
    """Return the sources, weakest first, with `llm.models` as a group in all of them.

    It may be a list of names, or give each name a model's name alone. A list replaces what weaker sources say.
    """
    found: list[list[SettingLeaf]] = []
    for source in sources:
        if any(leaf.path == _MODELS and leaf.value not in (None, {}) for leaf in source):
            found = [[leaf for leaf in weaker if leaf.path[:2] != _MODELS] for weaker in found]
        found.append([each for leaf in source for each in _entries(leaf)])
    return found


def _entries(leaf: SettingLeaf) -> Iterator[SettingLeaf]:
    """Yield *leaf*, or the leaves of a short form of `llm.models`. Invalid values are left to validation."""
    if leaf.path[:2] == _MODELS and len(leaf.path) == 3 and isinstance(leaf.value, str):
        yield replace(leaf, path=(*leaf.path, "model"))
        return
    listed = _as_list(leaf.value) if leaf.path == _MODELS else None
    if listed is None:
        yield leaf
        return
    for name in listed:
        yield replace(leaf, path=(*_MODELS, name, "model"), value=name)


def _as_list(value: object) -> list[str] | None:
    try:
        names_in = split_list(value)
    except ValueError:
        return None
    is_list = isinstance(names_in, list) and all(isinstance(name, str) for name in names_in)
    return [name.strip() for name in names_in] if is_list else None  # type: ignore[attr-defined]


def apply_rename(leaf: SettingLeaf) -> tuple[SettingLeaf, str]:
    """Return the leaf under the name that replaced its own, and the warning; or itself and ""."""
    new = RETIRED.get(".".join(leaf.path))
    if new is None:
        return leaf, ""
    warning = f"{leaf.place} is now called {spell_like(new, leaf)}; rename it"
    return replace(leaf, path=tuple(new.split("."))), warning


def spell_like(path: str, like: SettingLeaf) -> str:
    """Return a dotted name in the manner of the source *like* came from."""
    return environment_name(path) if like.is_environment else path


def block_model(name: str, kind: str, place: str, kinds: InstalledPlugins) -> type[ChannelSettings]:
    """Return the model of the block *name*; raise SettingsError if its name or kind is invalid."""
    if not BLOCK_NAME.match(name):
        near = name.lower().replace("_", "-")
        hint = f"write {near}" if BLOCK_NAME.match(near) else "use a-z, 0-9 and -, starting with a letter"
        raise SettingsError(f"{place}: {name!r} is not a valid channel name; {hint}")
    model = kinds.model(kind)
    if model is None:
        near = suggest_name(kind, kinds.names(), ())
        guess = f"did you mean {near}?" if near else f"available: {', '.join(kinds.names())}"
        own = f" (to use your own channel name, set its platform: channels.{name}.kind)" if kind == name else ""
        raise SettingsError(f"{place}: no platform is called {kind!r}; {guess}{own}")
    return model


def block_kinds(leaves: Iterable[SettingLeaf], kinds: InstalledPlugins) -> dict[str, tuple[str, str]]:
    """Return each block's kind and where the block is first spoken of. Its own name is its kind unless it says."""
    found = {name: (name, f"channels.{name}") for name in ALWAYS_THERE if name in kinds.names()}
    for leaf in leaves:
        if leaf.path[0] == "channels" and len(leaf.path) > 1:
            name = leaf.path[1]
            kind, place = found.get(name, (name, leaf.place))
            says_kind = leaf.path[2:] == ("kind",) and isinstance(leaf.value, str) and leaf.value
            found[name] = (str(leaf.value), leaf.place) if says_kind else (kind, place)
    return found


def resolve(leaf: SettingLeaf, blocks: Blocks) -> SettingLeaf | None:
    """Return the leaf under its known path, a `_file` read.

    None when it says nothing (null, an empty group, or part of a block that was refused already).
    Raises SettingsError when the name is unknown, or the shape is not the name's.
    """
    if leaf.path[0] not in ("channels", "chats"):
        return _resolve(leaf, 0, Settings, blocks)
    if len(leaf.path) < 3:
        return _nothing(leaf)
    model = ChatSettings if leaf.path[0] == "chats" else blocks.get(leaf.path[1])
    return _resolve(leaf, 2, model, blocks) if model else None


def _nothing(leaf: SettingLeaf) -> SettingLeaf | None:
    """A group may be empty (`telegram:` with nothing below it); it is not one value."""
    if leaf.value not in (None, {}):
        raise SettingsError(f"{leaf.place} must be a group of settings, not one value")
    return None


def _resolve(leaf: SettingLeaf, at: int, model: type[BaseModel], blocks: Blocks) -> SettingLeaf | None:
    name, is_last = leaf.path[at], at + 1 == len(leaf.path)
    if at == 0 and name == "home":
        raise SettingsError(f"{leaf.place}: only PARLOUR_HOME can set the home folder; remove it here")
    if name not in model.model_fields:
        return _read_file(leaf, at, model, blocks)
    entry = entries_of(model, name)
    if entry is not None and len(leaf.path) > at + 2:
        return _resolve(leaf, at + 2, entry, blocks)
    if entry is not None:
        return _nothing(leaf)
    group = group_of(model, name)
    if group is not None:
        return _nothing(leaf) if is_last else _resolve(leaf, at + 1, group, blocks)
    if not is_last:
        raise SettingsError(f"{leaf.place}: {'.'.join(leaf.path[: at + 1])} is one value, not a group of settings")
    return None if leaf.value is None else leaf


def _read_file(leaf: SettingLeaf, at: int, model: type[BaseModel], blocks: Blocks) -> SettingLeaf:
    """A secret's `<name>_file` names the file that holds it; anything else is unknown."""
    name = leaf.path[at]
    secret = name.removesuffix("_file")
    if secret == name or not is_secret(model, secret) or at + 1 < len(leaf.path):
        raise SettingsError(_unknown(leaf, at, model, blocks))
    value = read_secret_file(Path(str(leaf.value)).expanduser(), leaf.place)
    return replace(leaf, path=(*leaf.path[:-1], secret), value=value)


def _unknown(leaf: SettingLeaf, at: int, model: type[BaseModel], blocks: Blocks) -> str:
    siblings = [name for name in model.model_fields if (at, name) != (0, "home")]
    near = suggest_name(".".join(leaf.path[: at + 1]), siblings, ())
    if near:
        near = ".".join((near, *leaf.path[at + 1 :]))
    near = near or suggest_name(".".join(leaf.path), (), known_paths(blocks))
    guess = f"did you mean {spell_like(near, leaf)}?" if near else f"known settings here: {', '.join(siblings)}"
    return f"{leaf.place} is not a setting of Parlour; {guess}"


def merge(leaves: Iterator[SettingLeaf]) -> tuple[dict[str, object], dict[tuple[str, ...], str]]:
    """Return the tree of values and each value's place; later leaves win."""
    tree: dict[str, object] = {}
    places: dict[tuple[str, ...], str] = {}
    for leaf in leaves:
        here = tree
        for name in leaf.path[:-1]:
            # resolve() lets a name be a group or a value, never both.
            here = here.setdefault(name, {})  # type: ignore[assignment]
        here[leaf.path[-1]] = leaf.value
        places[leaf.path] = leaf.place
    return tree, places
