"""Which names are settings: spelling, known keys, renamed keys, and the nearest known one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from gateway.settings.settings_model import Settings

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
