"""Questions of `parlour init`, and findings of checks: one line each for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from gateway.installation import with_operator_commands


class FindingLevel(StrEnum):
    """The severity of a finding."""

    OK = "OK"
    WARN = "WARN"  # works, but should be fixed
    FAIL = "FAIL"  # does not start, cannot work, or loses something


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for operators, with the remedy for what is wrong."""

    level: FindingLevel
    text: str
    name: str = ""  # for people: channel telegram; a platform's plugin leaves it out
    about: str = ""  # the part, where one check has several: token

    @property
    def id(self) -> str:
        """The id for programs, the same in every release: channel.telegram.token."""
        return ".".join(part for part in (*self.name.split(), self.about) if part)

    def to_line(self) -> dict[str, str]:
        """Return the finding as JSON has it, with each command as it is typed for this installation."""
        text = with_operator_commands(self.text)
        return {"id": self.id, "level": self.level.value, "name": self.name, "text": text}

    @classmethod
    def from_line(cls, line: Mapping[str, str]) -> Finding:
        """Return the finding of a line; undoes `to_line`."""
        name = line["name"]
        about = line["id"].removeprefix(".".join(name.split())).removeprefix(".")
        return cls(FindingLevel(line["level"]), line["text"], name, about)


def ok(text: str, name: str = "", about: str = "") -> Finding:
    """Return a finding that needs no action."""
    return Finding(FindingLevel.OK, text, name, about)


def warn(text: str, name: str = "", about: str = "") -> Finding:
    """Return a finding that limits what works."""
    return Finding(FindingLevel.WARN, text, name, about)


def fail(text: str, name: str = "", about: str = "") -> Finding:
    """Return a finding that keeps its subject from working."""
    return Finding(FindingLevel.FAIL, text, name, about)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupQuestion:
    """One answer that a block needs before it can work."""

    setting: str  # the field of the block: token, allow_from
    text: str  # the question, one line
    help: str = ""  # how to find the value, click by click
    is_secret: bool = False  # not shown while typed, and written to secrets/ rather than to the configuration
    default: str = ""  # an empty answer means this; "" with is_optional = left out
    is_optional: bool = False


@runtime_checkable
class SupportsSetup(Protocol):
    """A channel kind that can be set up by questions and verified by real calls."""

    title: str  # name of the platform: Telegram
    steps: Sequence[str]  # what to do on the platform first, one line each

    def questions(self) -> Sequence[SetupQuestion]:
        """Return the setup questions in order."""

    async def verify(self, settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
        """Check the settings by calls to the platform: token, rights, conflicts. Changes nothing there.

        Refusals and an unreachable platform are findings, not exceptions. Takes at most 15 seconds.
        """
