"""From a leaf as written to a leaf under a known name, or to the line that says which name was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel

from gateway.errors import SettingsError
from gateway.settings import setting_names
from gateway.settings.channel_blocks import ALWAYS_THERE, BLOCK_NAME, ChannelSettings, InstalledPlugins
from gateway.settings.chat_settings import ChatSettings
from gateway.settings.setting_types import split_list
from gateway.settings.settings_model import Settings
from gateway.settings.sources import SettingLeaf, read_secret_file

Blocks = Mapping[str, type[ChannelSettings]]
_MODELS = ("llm", "models")
_BY_NAME = (_MODELS, ("tools", "rights"))  # groups whose keys are names


def normalize_names(leaf: SettingLeaf) -> SettingLeaf:
    """Return the leaf with its names spelled as the models spell them; block and chat names keep theirs."""
    path = list(leaf.path)
    for at, name in enumerate(path):
        is_name = (at == 1 and path[0] in ("channels", "chats")) or (at == 2 and tuple(path[:2]) in _BY_NAME)
        if not is_name:
            path[at] = setting_names.snake(name)
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
    new = setting_names.RETIRED.get(".".join(leaf.path))
    if new is None:
        return leaf, ""
    warning = f"{leaf.place} is now called {spell_like(new, leaf)}; rename it"
    return replace(leaf, path=tuple(new.split("."))), warning


def spell_like(path: str, like: SettingLeaf) -> str:
    """Return a dotted name in the manner of the source *like* came from."""
    return setting_names.environment_name(path) if like.is_environment else path


def block_model(name: str, kind: str, place: str, kinds: InstalledPlugins) -> type[ChannelSettings]:
    """Return the model of the block *name*; raise SettingsError if its name or kind is invalid."""
    if not BLOCK_NAME.match(name):
        near = name.lower().replace("_", "-")
        hint = f"write {near}" if BLOCK_NAME.match(near) else "use a-z, 0-9 and -, starting with a letter"
        raise SettingsError(f"{place}: {name!r} is not a valid channel name; {hint}")
    model = kinds.model(kind)
    if model is None:
        near = setting_names.suggest_name(kind, kinds.names(), ())
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
    entry = setting_names.entries_of(model, name)
    if entry is not None and len(leaf.path) > at + 2:
        return _resolve(leaf, at + 2, entry, blocks)
    if entry is not None:
        return _nothing(leaf)
    group = setting_names.group_of(model, name)
    if group is not None:
        return _nothing(leaf) if is_last else _resolve(leaf, at + 1, group, blocks)
    if not is_last:
        raise SettingsError(f"{leaf.place}: {'.'.join(leaf.path[: at + 1])} is one value, not a group of settings")
    return None if leaf.value is None else leaf


def _read_file(leaf: SettingLeaf, at: int, model: type[BaseModel], blocks: Blocks) -> SettingLeaf:
    """A secret's `<name>_file` names the file that holds it; anything else is unknown."""
    name = leaf.path[at]
    secret = name.removesuffix("_file")
    if secret == name or not setting_names.is_secret(model, secret) or at + 1 < len(leaf.path):
        raise SettingsError(_unknown(leaf, at, model, blocks))
    value = read_secret_file(Path(str(leaf.value)).expanduser(), leaf.place)
    return replace(leaf, path=(*leaf.path[:-1], secret), value=value)


def _unknown(leaf: SettingLeaf, at: int, model: type[BaseModel], blocks: Blocks) -> str:
    siblings = [name for name in model.model_fields if (at, name) != (0, "home")]
    near = setting_names.suggest_name(".".join(leaf.path[: at + 1]), siblings, ())
    if near:
        near = ".".join((near, *leaf.path[at + 1 :]))
    near = near or setting_names.suggest_name(".".join(leaf.path), (), setting_names.known_paths(blocks))
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
