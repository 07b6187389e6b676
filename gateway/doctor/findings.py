"""What the doctor says: one line each, with a name that programs can rely on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingLevel(StrEnum):
    """How a finding stands."""

    OK = "OK"
    WARN = "WARN"  # works, and should be mended
    FAIL = "FAIL"  # does not start, or loses something


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of the doctor's."""

    level: FindingLevel
    name: str  # for people: channel telegram
    text: str
    about: str = ""  # what of it, where several things are looked at: token

    @property
    def id(self) -> str:
        """Say what was looked at, for programs, the same in every release: channel.telegram.token."""
        return ".".join(part for part in (*self.name.split(), self.about) if part)
