"""Operations of the operator API as methods that carry their names, and what several of them need."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.control import Line, Operation
from gateway.errors import UserError
from gateway.events import SessionKey
from gateway.ports import TurnTrace
from gateway.web_console.console_routes import AuditRule, ConsoleOperation, ConsoleRole

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime

_Method = TypeVar("_Method", bound=Callable[..., AsyncIterator[Line]])
_CALL_NUMBER = re.compile(r"\.\d+\Z")
_NAMES: dict[Callable[..., object], str] = {}  # of operations, by method

CONSOLE_OPERATIONS: dict[str, ConsoleOperation] = {}  # of all groups, by name: those that a browser may call


def by_owner(*arguments: str, audit: AuditRule = AuditRule.NONE, subject: str = "") -> ConsoleOperation:
    """Let owners call an operation from the console with *arguments*, by default all that it has."""
    return ConsoleOperation(ConsoleRole.OWNER, frozenset(arguments), audit, subject)


def by_admin(*arguments: str, audit: AuditRule = AuditRule.NONE, subject: str = "chat") -> ConsoleOperation:
    """Let owners and the admins of `chat` call an operation from the console, with `chat` and *arguments* alone."""
    return ConsoleOperation(ConsoleRole.ADMIN, frozenset({"chat", *arguments}), audit, subject)


def operation(name: str, console: ConsoleOperation | None = None) -> Callable[[_Method], _Method]:
    """Make a method of an `OperationGroup` the operation called *name*, whose arguments are its parameters.

    They are texts, numbers, booleans or `object` for anything else; an underscore at the end is left out, as in `as_`.
    A single parameter `arguments` gets all of them as they are. Without *console*, no browser can call it.
    """

    def mark(method: _Method) -> _Method:
        _NAMES[method] = name
        if console is not None:
            CONSOLE_OPERATIONS[name] = console
            if console.role is ConsoleRole.OWNER and not console.arguments:
                names = (each.rstrip("_") for each in inspect.signature(method).parameters)
                CONSOLE_OPERATIONS[name] = replace(console, arguments=frozenset(names) - {"self", "arguments"})
        return method

    return mark


class OperationGroup:
    """The operations of one subsystem, over an open gateway."""

    def __init__(self, app: Runtime) -> None:
        self._app = app

    def by_name(self) -> Mapping[str, Operation]:
        """Return the operations by name."""
        methods = {name: method for name, method in vars(type(self)).items() if callable(method)}
        return {
            _NAMES[method]: _bind(_NAMES[method], getattr(self, name))
            for name, method in methods.items()
            if method in _NAMES
        }

    async def find_trace(self, reference: str) -> TurnTrace:
        """Return the turn of *reference*, which may be that of one of its calls (`t….1`). Raises UserError."""
        reference = _CALL_NUMBER.sub("", reference)
        trace = await self._app.store.journal.trace(reference) if reference else None
        if trace is None:
            raise no_such_turn(reference)
        return trace


def _bind(name: str, method: Callable[..., AsyncIterator[Line]]) -> Operation:
    """Return *method* as an operation that reads its parameters from the arguments."""
    parameters = inspect.signature(method, eval_str=True).parameters
    if "arguments" in parameters:
        return method
    wanted = {each.rstrip("_"): each for each in parameters}

    async def run(arguments: Line) -> AsyncIterator[Line]:
        if unknown := arguments.keys() - wanted.keys():
            raise UserError(f"{name} has no argument {', '.join(sorted(unknown))}")
        given = {
            wanted[each]: _convert(each, value, parameters[wanted[each]].annotation)
            for each, value in arguments.items()
            if value is not None
        }
        async for line in method(**given):
            yield line

    return run


def _convert(name: str, value: Any, kind: type) -> Any:
    """Return an argument as a parameter of the type *kind* takes it. Raises UserError."""
    try:
        if kind is not str or isinstance(value, str | int | float):
            return value if kind is object else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name} must be a number") from None
    raise UserError(f"{name} must be a text")


def no_such_turn(reference: str) -> UserError:
    """Return the error for a reference that names no turn, or none that the caller may see: both have one text."""
    return UserError(
        f"no turn starts with {_CALL_NUMBER.sub('', reference)!r}, or the journal has removed it by age; the reference"
        " is at the end of the notice that users saw"
    )


def target_file(file: str) -> Path:
    """Return the file to write, which the client has made absolute. Raises UserError without one."""
    target = Path(file)
    if not target.is_absolute():
        raise UserError("no file was given; name the file to write")
    return target


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
