"""What a child is told to do, and where it leaves its traces; light, so that the test process stays light."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.shim import ShimMode

CHANNEL = "relay"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOrder:
    """What a child shall do; travels as one JSON line."""

    root: str  # everything under it is watched; the home and the tool's traces stand there
    report: str  # where the shim writes what it struck
    log: str
    base: str  # address of the platform
    model: str  # address of the scripted model
    mode: int = ShimMode.COUNT
    at: int = 0
    of: str = ""  # `at` counts only the calls whose "kind name" begins with this
    platform: str = CHANNEL
    is_strict: bool = False  # `delivery.once: strict`
    notes: Mapping[str, str] = field(default_factory=dict)  # what the channel has noted before this life
    by_state: bool = False  # count only calls before which a kill leaves something new
    whole_life: bool = False  # count from before the start, not from readiness
    is_later: bool = False  # count from when it is told to, not from readiness
    send_key: bool = True
    preview_seconds: float = 0.01
    grace: float = 25.0
    merge: str = "burst"  # which messages of a person share a turn
    is_signalled: bool = False  # run as the command does, and end by SIGTERM
    owner: str = ""  # of the relay: who alone may write, and decides
    turns: int | None = 0  # that a person may take in ten minutes; 0 = any (ann writes in 25 chats), None = the usual
    hours: int | None = None  # that the clock is ahead; `later` moves it on by one. None = the machine's clock
    database: str = ""  # `store.url`; "" = SQLite
    settings: Mapping[str, Any] = field(default_factory=dict)  # beside those of every child
    has_page: bool = False  # the web channel runs, too
    imports: bool = False  # before it serves, take over the files of the home, as `parlour mirror import` does
    settles: bool = False  # before it is finished, background jobs are done and the mirror is written
    sabotage: str = ""  # which promise this gateway breaks (sabotage.py), to see that it is noticed

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self))

    @property
    def home(self) -> Path:
        """The gateway's home."""
        return Path(self.root) / "home"


def traces(root: Path) -> Path:
    """Return the file that the tool appends to."""
    return root / "traces.jsonl"
