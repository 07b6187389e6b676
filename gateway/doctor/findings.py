"""Findings of `parlour doctor`: one line each, with an id for programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingLevel(StrEnum):
    """The severity of a finding."""

    OK = "OK"
    WARN = "WARN"  # works, but should be fixed
    FAIL = "FAIL"  # does not start, or loses something


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of `parlour doctor`."""

    level: FindingLevel
    name: str  # for people: channel telegram
    text: str
    about: str = ""  # the part, where one check has several: token

    @property
    def id(self) -> str:
        """The id for programs, the same in every release: channel.telegram.token."""
        return ".".join(part for part in (*self.name.split(), self.about) if part)
