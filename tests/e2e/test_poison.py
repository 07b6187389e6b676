"""An event that kills the process as soon as it is read is set aside, it alone."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway import quarantine
from gateway.health.doctor import collect_findings
from gateway.i18n import translate
from tests.fakes.crashing_channel import GIBBERISH, POISON
from tests.fakes.forked_command import ForkedCommand, fork_command, fork_into
from tests.fakes.relay import RelayServer, open_relay
from tests.faults.process_pool import ForkServer


@asynccontextmanager
async def life(zygote: ForkServer, home: Path, relay: RelayServer, *words: str) -> AsyncIterator[ForkedCommand]:
    """Start a gateway; it is gone at the end of the block."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")}
    command = ("-m", "tests.fakes.crashing_channel", str(home), relay.base, *words)
    with (home.parent / "log").open("ab") as log:
        process = await fork_into(zygote, command, kept, log.fileno())
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def operate(zygote: ForkServer, home: Path, *command: str) -> int:
    """Run a command as an operator does, and return its exit code."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")}
    kept |= {"PARLOUR_HOME": str(home), "PARLOUR_WEB__PORT": "0"}
    return await (await fork_command(zygote, command, kept)).wait()


async def wait_answers(relay: RelayServer, *chats: str) -> None:
    """Return when each chat shows an answer."""
    while not all(relay.chat(chat) for chat in chats):
        await relay.wait_changed()


async def test_an_event_that_kills_is_set_aside_and_its_neighbours_are_answered(
    tmp_path: Path, zygote: ForkServer
) -> None:
    """Two lives end at once; two cautious ones die of it; the fifth answers everybody else, and tells its sender.

    Once the cause is mended, the operator has it taken in after all.
    """
    home = tmp_path / "home"
    async with open_relay() as relay:
        relay.say("before", "hello")
        relay.say("poisoned", f"a drop of {POISON}")
        relay.say("after", "hello")
        for number in range(4):
            async with life(zygote, home, relay) as process:
                assert await process.wait() == -signal.SIGKILL, f"life {number}:\n{(tmp_path / 'log').read_text()}"
            if number == 1:
                assert (
                    await operate(zygote, home, "status") == 0
                )  # which must not be taken for a clean stop of the gateway
        async with life(zygote, home, relay) as process:
            relay.say("odd", f"some {GIBBERISH}")
            relay.say("late", "hello")
            await wait_answers(relay, "before", "after", "late")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0, (tmp_path / "log").read_text()
        (notice,) = relay.chat("poisoned")
        assert notice.text == translate("queue.set_aside", "en")
        turns = {
            chat: {part.key.partition(".")[0] for part in relay.chat(chat)} for chat in ("before", "after", "late")
        }
        assert [len(answered) for answered in turns.values()] == [1, 1, 1]
        odd, killer = quarantine.list_events(home / "quarantine")
        assert (odd.channel, odd.reason) == ("relay", "a text that is none")
        assert killer.reason == "it was being handled when the process was killed"
        assert stat.S_IMODE(killer.file.stat().st_mode) == 0o600
        log = (tmp_path / "log").read_text()
        assert POISON not in log
        assert GIBBERISH not in log
        told = [f async for f in collect_findings({"PARLOUR_HOME": str(home)}, is_offline=True, asks_model=False)]
        lines = [finding.text for finding in told if finding.name == "quarantine"]
        assert len(lines) == 2
        assert str(killer.file) in lines[1]
        assert POISON not in "".join(finding.text for finding in told)
        async with life(zygote, home, relay, "cured"):
            relay.say("ready", "hello")
            await wait_answers(relay, "ready")
            assert await operate(zygote, home, "quarantine", "replay", killer.file.stem) == 0
            while len(relay.chat("poisoned")) < 2:
                await relay.wait_changed()
            assert [event.reason for event in quarantine.list_events(home / "quarantine")] == ["a text that is none"]
