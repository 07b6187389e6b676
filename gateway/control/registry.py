"""Operations as they are declared: once, for the command line, the console and the chat.

A method of an `OperationGroup` is an operation. Its parameters are the arguments, its docstring is the help of the
command line, and its decorator has the least role of a caller and the format of its lines in a terminal. `may_call` is
the one place where a caller's rights are checked: the peer of the socket owns the home and is not asked.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, get_args, get_origin

from gateway.control import Line, Operation
from gateway.errors import UserError
from gateway.events import Role, SessionKey
from gateway.installation import with_operator_commands

_Method = TypeVar("_Method", bound=Callable[..., AsyncIterator[Line]])

Show: TypeAlias = Callable[[Sequence[Line], Line], Iterable[str]]  # (lines, arguments) -> rows of a terminal
Call: TypeAlias = Callable[[str, Line], Sequence[Line]]  # runs an operation by its name


class AuditRule(StrEnum):
    """Origin of the audit entry of a call from the console."""

    CALL = "call"  # before it runs
    OPERATION = "operation"  # it is a decision, which the operation notes itself, under the caller's name
    NONE = "none"  # figures and names alone, which a page reads every few seconds


@dataclass(frozen=True, slots=True)
class CommandArgument:
    """A parameter as the command line offers it: by its place or, with *is_option*, as `--name`."""

    help: str
    metavar: str | None = None
    is_option: bool = False
    least: int | None = None
    most: int | None = None
    is_file: bool = False  # the command line takes the file whose text is the value; - is standard input


def argument(text: str, metavar: str | None = None) -> CommandArgument:
    """Return a parameter that the command line takes by its place."""
    return CommandArgument(text, metavar)


def option(
    text: str,
    *,
    metavar: str | None = None,
    least: int | None = None,
    most: int | None = None,
    is_file: bool = False,
) -> CommandArgument:
    """Return a parameter that the command line offers as `--name`."""
    return CommandArgument(text, metavar, is_option=True, least=least, most=most, is_file=is_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationParameter:
    """One argument of an operation."""

    name: str
    kind: Any  # str, int, bool, Path, or object for anything else
    default: Any = inspect.Parameter.empty
    form: CommandArgument | None = None  # None: the command line does not offer it


@dataclass(frozen=True, slots=True)
class CommandConfirmation:
    """A text and a question that the command line prints before it calls; without a *question* it ends.

    *confirmed* is added to the arguments of the call: it names what the question has shown.
    """

    question: str
    text: str = ""
    confirmed: Line = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationDeclaration:
    """An operation without its gateway."""

    name: str
    method: Callable[..., AsyncIterator[Line]]
    help: str
    parameters: Mapping[str, OperationParameter]  # by the name of the argument
    least: Role | None  # None: only at the machine. ADMIN: admins of the chat in the argument `chat`, too
    console: frozenset[str]  # arguments that callers elsewhere may give
    audit: AuditRule
    subject: str  # the argument that the audit names
    show: Show | None  # None: no command of its own
    command: str  # words of the command line
    makes_home: bool  # may be called before a first start
    confirm: Callable[[Call, Line], CommandConfirmation | None] | None
    has_progress: bool  # lines with `done` and `of` say how far it is, and are no result
    exit_code: Callable[[Sequence[Line]], int]

    def bind(self, group: object) -> Operation:
        """Return the operation over the gateway of *group*. Wrong arguments raise UserError."""

        async def run(arguments: Line) -> AsyncIterator[Line]:
            async for line in self.method(group, **self._read(arguments)):
                yield line

        return run

    def _read(self, arguments: Line) -> dict[str, Any]:
        if unknown := arguments.keys() - self.parameters.keys():
            raise UserError(f"{self.name} has no argument {', '.join(sorted(unknown))}")
        given = {name: value for name, value in arguments.items() if value is not None}
        required = (name for name, each in self.parameters.items() if each.default is inspect.Parameter.empty)
        if missing := [name for name in required if name not in given]:
            raise UserError(f"{self.name} needs the argument {', '.join(missing)}")
        return {
            self.parameters[name].name: _convert(name, value, self.parameters[name].kind)
            for name, value in given.items()
        }


OPERATIONS: dict[str, OperationDeclaration] = {}  # by name


def operation(
    name: str,
    least: Role | None = None,
    console: Iterable[str] | None = None,
    *,
    audit: AuditRule = AuditRule.NONE,
    subject: str = "",
    show: Show | None = None,
    command: str = "",
    makes_home: bool = False,
    confirm: Callable[[Call, Line], CommandConfirmation | None] | None = None,
    has_progress: bool = False,
    exit_code: Callable[[Sequence[Line]], int] = lambda _: 0,
) -> Callable[[_Method], _Method]:
    """Declare a method of an `OperationGroup` as the operation called *name*.

    *least* is the role that may call it from the console, with the arguments *console*: by default all for owners, and
    `chat` alone for admins. An underscore at the end of a parameter is left out, as in `as_`. *show* makes it a
    command, by default of the same name.
    """

    def declare(method: _Method) -> _Method:
        parameters = _parameters_of(method)
        is_admins = least is Role.ADMIN
        names = {"chat", *(console or ())} if is_admins else parameters.keys() if console is None else console
        OPERATIONS[name] = OperationDeclaration(
            name=name,
            method=method,
            help=inspect.getdoc(method) or "",
            parameters=parameters,
            least=least,
            console=frozenset(names),
            audit=audit,
            subject=subject or ("chat" if is_admins else ""),
            show=show,
            command=command or name,
            makes_home=makes_home,
            confirm=confirm,
            has_progress=has_progress,
            exit_code=exit_code,
        )
        return method

    return declare


def console_operations() -> Mapping[str, OperationDeclaration]:
    """Return the operations that a browser may call, by name."""
    return {name: each for name, each in OPERATIONS.items() if each.least is not None}


class CallerRights(Protocol):
    """The rights of callers, who are users of the page or senders in a chat."""

    def is_owner(self, who: str) -> bool:
        """Return True if *who* is an owner, also by another of their accounts."""

    async def is_admin(self, who: str, chat: str) -> bool:
        """Return True if *who* administers the shared chat *chat* now."""


async def may_call(rights: CallerRights, who: str, rule: OperationDeclaration, arguments: Line) -> bool:
    """Return True if *who* may call the operation of *rule* with *arguments* now."""
    if rule.least is None:
        return False
    if rights.is_owner(who):
        return True
    chat = arguments.get("chat")
    return rule.least is Role.ADMIN and isinstance(chat, str) and await rights.is_admin(who, chat)


def bind_group(group: object) -> Mapping[str, Operation]:
    """Return the operations of a group's class, over *group*."""
    methods = [method for each in type(group).__mro__ for method in vars(each).values()]
    return {name: each.bind(group) for name, each in OPERATIONS.items() if each.method in methods}


def _parameters_of(method: Callable[..., object]) -> dict[str, OperationParameter]:
    found: dict[str, OperationParameter] = {}
    for name, each in inspect.signature(method, eval_str=True).parameters.items():
        if name == "self":
            continue
        kind, form = each.annotation, None
        if get_origin(kind) is Annotated:
            kind, form = get_args(kind)[:2]
        found[name.rstrip("_")] = OperationParameter(name=name, kind=kind, default=each.default, form=form)
    return found


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Return an argument as a parameter of the type *kind* takes it. Raises UserError."""
    if kind is Path:
        return _absolute(value)
    kind = next((each for each in get_args(kind) if each is not type(None)), kind)  # of `str | None`
    if kind is bool and not isinstance(value, bool):  # "false" would be true
        raise UserError(f"{name} must be true or false")
    try:
        if kind is not str or isinstance(value, str | int | float):
            return value if kind is object else kind(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name} must be a number") from None
    raise UserError(f"{name} must be a text")


def _absolute(file: object) -> Path:
    """Return the file to write, which the client has made absolute. Raises UserError without one."""
    target = Path(str(file))
    if not target.is_absolute():
        raise UserError("no file was given; name the file to write")
    return target


def rows(format_row: Callable[[Line], str], *, empty: str | Callable[[Line], str] = "") -> Show:
    """Show one row per line, formatted by *format_row*; without a line *empty*, which may depend on the arguments."""

    def show(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
        if not lines:
            text = empty if isinstance(empty, str) else empty(arguments)
            return [with_operator_commands(text)] if text else []
        return map(format_row, lines)

    return show


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
