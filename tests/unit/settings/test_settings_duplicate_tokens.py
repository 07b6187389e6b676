"""A token is one bot's: two blocks that have the same are refused before anything connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import check_settings

TELEGRAM = "123456789:AAH-abcdefghijklmnopqrstuvwxyz012"
DISCORD = "MTA0MjAwMDAwMDAwMDAwMDAwMQ.GcanaR.y-canary_canary-canary_canary-canary01"
BOT, APP = "xoxb-1111111111-2222222222-fakefakefake", "xapp-1-A0PARLOUR-3333333333-fakefakefake"
CASES = [
    ("telegram", {"TOKEN": TELEGRAM}, {"TOKEN": TELEGRAM}, "TOKEN"),
    ("discord", {"TOKEN": DISCORD}, {"TOKEN": DISCORD}, "TOKEN"),
    ("slack", {"BOT_TOKEN": BOT, "APP_TOKEN": APP}, {"BOT_TOKEN": BOT, "APP_TOKEN": f"{APP}2"}, "BOT_TOKEN"),
    ("slack", {"BOT_TOKEN": BOT, "APP_TOKEN": APP}, {"BOT_TOKEN": f"{BOT}2", "APP_TOKEN": APP}, "APP_TOKEN"),
]


def mistakes(home: Path, kind: str, one: dict[str, str], other: dict[str, str], **more: str) -> tuple[str, ...]:
    """Return what is wrong with two blocks of a kind."""
    prefix = f"PARLOUR_CHANNELS__{kind.upper()}"
    variables = {f"{prefix}__{name}": value for name, value in one.items()}
    variables |= {f"{prefix}_WORK__{name}": value for name, value in {"KIND": kind, **other, **more}.items()}
    return check_settings({"PARLOUR_HOME": str(home), **variables}).mistakes


@pytest.mark.parametrize(("kind", "one", "other", "field"), CASES)
def test_two_blocks_with_one_token_are_refused(
    tmp_path: Path, kind: str, one: dict[str, str], other: dict[str, str], field: str
) -> None:
    """One line: which blocks, what comes of it, and how to mend it; and never the token."""
    (line,) = mistakes(tmp_path, kind, one, other)
    assert line.startswith(f"PARLOUR_CHANNELS__{kind.upper()}_WORK__{field}: channels.{kind} uses the same token")
    assert f"give channels.{kind}-work its own bot" in line
    assert not any(secret in line for secret in (*one.values(), *other.values()))


@pytest.mark.parametrize(("kind", "one", "other", "field"), CASES)
def test_a_block_that_is_off_is_nobodys_twin(
    tmp_path: Path, kind: str, one: dict[str, str], other: dict[str, str], field: str
) -> None:
    """Nor is one with a token of its own; one signing secret may serve an app in two workspaces."""
    assert mistakes(tmp_path, kind, one, other, ENABLED="false") == ()
    own = {name: value + "x" for name, value in other.items()}
    assert field in own
    assert mistakes(tmp_path, kind, one, own) == ()
    signed = {"SIGNING_SECRET": "0" * 32}
    if kind == "slack":
        assert mistakes(tmp_path, kind, {**signed, "BOT_TOKEN": BOT}, {**signed, "BOT_TOKEN": f"{BOT}2"}) == ()
