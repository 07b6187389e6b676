"""Findings of checks: one line each, for `parlour doctor`, `status` and `init`, and for the start of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


def ok(text: str, name: str = "", about: str = "") -> Finding:
    """Return a finding that needs no action."""
    return Finding(FindingLevel.OK, text, name, about)


def warn(text: str, name: str = "", about: str = "") -> Finding:
    """Return a finding that limits what works."""
    return Finding(FindingLevel.WARN, text, name, about)


def fail(text: str, name: str = "", about: str = "") -> Finding:
    """Return a finding that keeps its subject from working."""
    return Finding(FindingLevel.FAIL, text, name, about)
