"""Operations of the operator API as methods that carry their names, and what several of them need."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.control import Line, Operation
from gateway.errors import UserError
from gateway.events import SessionKey
from gateway.ports import TurnTrace

if TYPE_CHECKING:
    from gateway.app.app import GatewayApp

_Method = TypeVar("_Method", bound=Callable[..., AsyncIterator[Line]])
_CALL_NUMBER = re.compile(r"\.\d+\Z")
_NAMES: dict[Callable[..., object], str] = {}  # of operations, by method


def operation(name: str) -> Callable[[_Method], _Method]:
    """Make a method of an `OperationGroup` the operation called *name*."""

    def mark(method: _Method) -> _Method:
        _NAMES[method] = name
        return method

    return mark


class OperationGroup:
    """The operations of one subsystem, over an open gateway."""

    def __init__(self, app: GatewayApp) -> None:
        self._app = app

    def by_name(self) -> Mapping[str, Operation]:
        """Return the operations by name."""
        methods = {name: method for name, method in vars(type(self)).items() if callable(method)}
        return {_NAMES[method]: getattr(self, name) for name, method in methods.items() if method in _NAMES}

    async def find_trace(self, arguments: Line) -> TurnTrace:
        """Return the turn of `reference`, which may be that of one of its calls (`t….1`). Raises UserError."""
        reference = _reference(arguments)
        trace = await self._app.store.journal.trace(reference) if reference else None
        if trace is None:
            raise no_such_turn(arguments)
        return trace


def no_such_turn(arguments: Line) -> UserError:
    """Return the error for a `reference` that names no turn, or none that the caller may see: both have one text."""
    return UserError(
        f"no turn starts with {_reference(arguments)!r}, or the journal has removed it by age; the reference is at the"
        " end of the notice that users saw"
    )


def target_file(arguments: Line) -> Path:
    """Return the `file` to write, which the client has made absolute. Raises UserError without one."""
    target = Path(str(arguments.get("file", "")))
    if not target.is_absolute():
        raise UserError("no file was given; name the file to write")
    return target


def _reference(arguments: Line) -> str:
    return _CALL_NUMBER.sub("", str(arguments.get("reference", "")))


def plain(value: Any) -> Any:
    """Return *value* as JSON has it: times as ISO 8601, keys as text, records as objects."""
    if isinstance(value, SessionKey):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
