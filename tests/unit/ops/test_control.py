"""Lines over the socket: every operation ends, errors arrive as one line, and only the owner gets in."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.control import LONGEST_LINE, ControlConnection, ControlServer, Handler, Line, call, connect, start_call
from gateway.errors import UserError
from gateway.home import Home, hold_lock


async def count(arguments: Line, connection: ControlConnection) -> None:
    """Send as many lines as asked."""
    for number in range(int(arguments["to"])):
        await connection.send({"n": number})


async def echo(_: Line, connection: ControlConnection) -> None:
    """Say everything again until "bye"."""
    while (line := await connection.receive()) is not None and line.get("text") != "bye":
        await connection.send({"echo": line["text"]})


async def odd(_: Line, connection: ControlConnection) -> None:
    """Send lines whose fields the protocol has too."""
    for line in ({"end": 3}, {"error": "of a turn"}, {"line": 1}):
        await connection.send(line)


async def mistake(_: Line, __: ControlConnection) -> None:
    """Fail as a person can mend."""
    raise UserError("that cannot be; do this instead")


async def bug(_: Line, __: ControlConnection) -> None:
    """Fail as nobody foresaw."""
    raise ZeroDivisionError("inner words")


async def full(_: Line, __: ControlConnection) -> None:
    """Fail as a disk makes it fail."""
    raise OSError(errno.ENOSPC, "No space left on device", "/data/x")


HANDLERS: Mapping[str, Handler] = {
    "count": count,
    "echo": echo,
    "odd": odd,
    "mistake": mistake,
    "bug": bug,
    "full": full,
}


@asynccontextmanager
async def serving(home: Home) -> AsyncIterator[ControlServer]:
    """Serve the operations above on the home's socket."""
    server = ControlServer(home.socket, HANDLERS)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.serve(), name="control")
        await server.wait_listening()
        yield server
        running.cancel()


async def ask(home: Home, name: str, arguments: Line | None = None) -> list[Line]:
    """Run one operation to its end."""
    async with connect(home) as connection:
        assert connection is not None
        return [line async for line in call(connection, name, arguments or {})]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a short path."""
    return Home(tmp_path)


@pytest.mark.parametrize("depth", [0, 130])
async def test_an_operation_yields_its_lines_and_ends(tmp_path: Path, depth: int) -> None:
    """Lines arrive in order and then it is over, in a home as deep as file systems allow too."""
    folder = tmp_path / ("d" * depth) if depth else tmp_path
    folder.mkdir(exist_ok=True)
    async with serving(Home(folder)):
        assert await ask(Home(folder), "count", {"to": 3}) == [{"n": 0}, {"n": 1}, {"n": 2}]


async def test_both_sides_may_speak(home: Home) -> None:
    """A terminal's conversation goes both ways until one of them leaves."""
    async with serving(home), connect(home) as connection:
        assert connection is not None
        operation = await start_call(connection, "echo", {})
        for text in ("one", "two"):
            await operation.send({"text": text})
            assert await operation.receive() == {"echo": text}
        await operation.send({"text": "bye"})
        assert await operation.receive() is None
        assert operation.has_ended


async def test_no_field_of_an_answer_is_taken_for_the_protocol(home: Home) -> None:
    """A line may have fields called `end`, `error` and `line`: a search hit has an end, a dead letter an error."""
    async with serving(home):
        assert await ask(home, "odd", {}) == [{"end": 3}, {"error": "of a turn"}, {"line": 1}]


async def test_a_mistake_arrives_as_its_line(home: Home) -> None:
    """What the operation says is what the person reads."""
    async with serving(home):
        with pytest.raises(UserError, match=r"^that cannot be; do this instead$"):
            await ask(home, "mistake")


async def test_a_full_disk_is_said_and_is_no_gateway_that_stopped(home: Home) -> None:
    """What an operation meets at the disk is its line; only a caller that has gone hears nothing."""
    async with serving(home):
        with pytest.raises(UserError, match="the disk of /data/x is full"):
            await ask(home, "full")


async def test_a_bug_ends_that_call_alone(home: Home) -> None:
    """A bug is named to its caller without inner words, and the next call is served."""
    async with serving(home):
        with pytest.raises(UserError) as told:
            await ask(home, "bug")
        assert "inner words" not in str(told.value)
        assert await ask(home, "count", {"to": 1}) == [{"n": 0}]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"[]\n",
        b'{"do": "nothing-of-ours"}\n',
        b'{"do": "count", "with": 3}\n',
        b"x" * (LONGEST_LINE + 2) + b"\n",
    ],
    ids=["no-json", "no-object", "unknown", "bad-arguments", "too-long"],
)
async def test_what_is_no_request_is_answered_and_ended(home: Home, line: bytes) -> None:
    """A line of another protocol, or one without end, costs its sender the connection and nobody else."""
    async with serving(home):
        reader, writer = await asyncio.open_unix_connection(str(home.socket))
        writer.write(line)
        answer = json.loads(await reader.readline())
        assert set(answer) == {"error"}
        writer.close()
        assert await ask(home, "count", {"to": 1}) == [{"n": 0}]


async def test_the_socket_is_the_owners(home: Home) -> None:
    """0600 under any umask, replaced when a dead process left one, and gone afterwards."""
    before = os.umask(0)
    try:
        home.socket.touch()
        async with serving(home):
            assert stat.S_IMODE(home.socket.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert not home.socket.exists()


async def test_a_stop_ends_conversations(home: Home) -> None:
    """Nobody waits for a gateway that has gone: an attached terminal hears the end."""
    async with connect(home) as nothing:
        assert nothing is None
    async with serving(home):
        lingering = connect(home)
        connection = await lingering.__aenter__()
        assert connection is not None
        operation = await start_call(connection, "echo", {})
        await operation.send({"text": "one"})
        assert await operation.receive() == {"echo": "one"}
    assert await operation.receive() is None
    assert not operation.has_ended
    await lingering.__aexit__(None, None, None)


async def test_a_home_that_is_held_but_silent_is_said(home: Home) -> None:
    """A gateway that is starting or stopping is no free home: no command takes it for one."""
    with hold_lock(home), pytest.raises(UserError, match="starting or stopping"):
        async with connect(home):
            pass
