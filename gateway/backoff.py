"""Exponential back-off. Pure: attempts are counted by the caller, most of them durably.

Retry libraries (tenacity, stamina) run a loop inside one process. Most attempts here are rows and continue after a
restart, and a platform's `Retry-After` decides first, so only the formula is shared.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

_Delay = TypeVar("_Delay", float, timedelta)
_MOST_DOUBLINGS = 20


def exponential_delay(failures: int, first: _Delay, longest: _Delay) -> _Delay:
    """Return the delay after *failures* in a row: *first*, doubled by each further one, at most *longest*."""
    return min(first * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), longest)
