"""Questions of `parlour init` and checks of `parlour doctor`, per platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from gateway.ports.findings import Finding


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
