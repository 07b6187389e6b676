"""Findings of checks: one line each, for `parlour doctor`, `status` and `init`, and for the start of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.ports.entry_points import with_operator_commands


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
