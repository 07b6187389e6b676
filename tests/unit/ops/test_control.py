"""The operator API over the socket: every operation ends, errors arrive as one line, and only the owner gets in."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.control import LONGEST_LINE, ControlConnection, Conversation, Line, Operation, OperationFailed, connect
from gateway.control.control_server import ControlServer
from gateway.errors import NothingToReplay, StoreUnavailable, UserError
from gateway.home import Home, hold_lock
from tests.fakes.gateway import COMMAND


async def count(arguments: Line) -> AsyncIterator[Line]:
    """Yield as many lines as asked."""
    for number in range(int(arguments["to"])):
        yield {"n": number}


async def echo(_: Line, connection: ControlConnection) -> None:
    """Say everything again until "bye"."""
    while (line := await connection.receive()) is not None and line.get("text") != "bye":
        await connection.send({"echo": line["text"]})


async def refuse(_: Line, __: ControlConnection) -> None:
    """Refuse to converse."""
    raise UserError("the console is disabled; " + "switch it on " * 20)


async def odd(_: Line) -> AsyncIterator[Line]:
    """Yield lines whose fields the protocol has too."""
    for line in ({"end": 3}, {"error": "of a turn"}, {"line": 1}, {"text": "a\u2028b\x1cc\nd"}):
        yield line


async def mistake(_: Line) -> AsyncIterator[Line]:
    """Fail as a person can mend."""
    raise UserError("that cannot be; run `parlour doctor` instead")
    yield {}


async def nothing(_: Line) -> AsyncIterator[Line]:
    """Find a turn that cannot be replayed."""
    raise NothingToReplay("the messages are not stored any more")
    yield {}


async def late(_: Line) -> AsyncIterator[Line]:
    """Fail behind a line."""
    yield {"n": 0}
    raise UserError("that was one too many")


async def store_down(_: Line) -> AsyncIterator[Line]:
    """Fail as no operator's mistake."""
    raise StoreUnavailable("the journal cannot write now")
    yield {}


async def bug(_: Line) -> AsyncIterator[Line]:
    """Fail as nobody foresaw."""
    raise ZeroDivisionError("inner words")
    yield {}


async def full(_: Line) -> AsyncIterator[Line]:
    """Fail as a disk makes it fail."""
    raise OSError(errno.ENOSPC, "No space left on device", "/data/x")
    yield {}


OPERATIONS: Mapping[str, Operation] = {
    "count": count,
    "odd lines": odd,
    "mistake": mistake,
    "nothing": nothing,
    "late": late,
    "store down": store_down,
    "bug": bug,
    "full": full,
}
CONVERSATIONS: Mapping[str, Conversation] = {"echo": echo, "refuse": refuse}


@asynccontextmanager
async def serving(home: Home, **more: Operation) -> AsyncIterator[ControlServer]:
    """Serve the operations above on the home's socket."""
    server = ControlServer(home.socket, {**OPERATIONS, **more}, CONVERSATIONS)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.serve(), name="control")
        await server.wait_listening()
        yield server
        running.cancel()


async def ask(home: Home, name: str, arguments: Line | None = None) -> list[Line]:
    """Run one operation to its end."""
    async with connect(home) as client:
        assert client is not None
        return [line async for line in client.call(name, arguments or {})]


@asynccontextmanager
async def plain_client(home: Home) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client on the socket, as another program has it."""
    transport = httpx.AsyncHTTPTransport(uds=str(home.socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


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


async def test_idle_connections_beyond_the_limit_keep_no_command_out(home: Home) -> None:
    """The socket holds 64 connections: with one more, the one that has been silent for longest is closed."""
    async with serving(home), AsyncExitStack() as stack:
        idle = [await asyncio.open_unix_connection(str(home.socket)) for _ in range(64)]
        for _, writer in idle:
            stack.callback(writer.close)
        assert await ask(home, "count", {"to": 1}) == [{"n": 0}]
        assert await idle[0][0].read() == b""
        assert not any(reader.at_eof() for reader, _ in idle[1:])


async def test_both_sides_may_speak(home: Home) -> None:
    """A terminal's conversation goes both ways until one of them leaves."""
    async with serving(home), connect(home) as client:
        assert client is not None
        async with client.converse("echo") as conversation:
            for text in ("one", "two"):
                await conversation.send({"text": text})
                assert await conversation.receive() == {"echo": text}
            await conversation.send({"text": "bye"})
            assert await conversation.receive() is None


async def test_a_conversation_that_is_refused_says_why(home: Home) -> None:
    """The whole line arrives, however long, and not that the gateway has gone."""
    async with serving(home), connect(home) as client:
        assert client is not None
        async with client.converse("refuse") as conversation:
            with pytest.raises(UserError, match=r"the console is disabled; .*switch it on $"):
                await conversation.receive()


async def test_no_field_of_an_answer_is_taken_for_the_protocol(home: Home) -> None:
    """A line may have fields called `end`, `error` and `line`: a search hit has an end, a dead letter an error."""
    async with serving(home):
        odd_text = {"text": "a\u2028b\x1cc\nd"}
        assert await ask(home, "odd lines", {}) == [{"end": 3}, {"error": "of a turn"}, {"line": 1}, odd_text]


async def test_a_mistake_arrives_as_its_line(home: Home) -> None:
    """What the operation says is what the person reads."""
    async with serving(home):
        with pytest.raises(UserError, match=r"^that cannot be; run `.*parlour doctor` instead$"):
            await ask(home, "mistake")


async def test_a_mistake_behind_a_line_arrives_too(home: Home) -> None:
    """What was answered before it arrives as well."""
    async with serving(home), connect(home) as client:
        assert client is not None
        lines = client.call("late", {})
        assert await anext(lines) == {"n": 0}
        with pytest.raises(UserError, match=r"^that was one too many$"):
            await anext(lines)


@pytest.mark.parametrize(
    ("name", "status", "exit_code"), [("mistake", 400, 2), ("nothing", 400, 4), ("store down", 500, 1)]
)
async def test_an_error_is_a_status_a_line_and_an_exit_code(home: Home, name: str, status: int, exit_code: int) -> None:
    """Another client than the command line sees by the status that it failed, and the exit code is the command's."""
    async with serving(home):
        with pytest.raises(OperationFailed) as caught:
            await ask(home, name)
        assert caught.value.exit_code == exit_code
        async with plain_client(home) as client:
            response = await client.post(f"/v1/{name.replace(' ', '/')}", json={})
            assert response.status_code == status
            assert "`parlour " not in response.text  # the console shows it: a command is named as it works here
            assert response.json() == {"error": str(caught.value), "exit_code": exit_code}


async def test_what_was_compared_before_an_error_is_printed(home: Home) -> None:
    """The turns that were paid for, then the error; without any, that alone."""
    spent = {"tokens": {"input": 9, "output": 1, "cached": 0}, "cost": 0.5}
    turn = {
        "turn": "t1",
        "reference": "t1",
        "at": "2026-11-30T02:00:00Z",
        "key": "web:ann",
        "skipped": "",
        "calls": [],
        "question": "Hello",
        "model": "usual",
        "answer": "Hello Ann.",
        "recorded": spent,
        "other": {**spent, "model": "other", "text": "Good day.", "calls": [], "failure": ""},
    }
    lines: list[Line] = [{"done": 0, "of": 3}, turn, {"done": 1, "of": 3}]

    async def replay(_: Line) -> AsyncIterator[Line]:
        for line in lines:
            yield line
        raise StoreUnavailable("the store is down")

    async def run() -> tuple[int | None, str, str]:
        process = await asyncio.create_subprocess_exec(
            COMMAND, "replay", "--model", "other", "--last", "3", "--yes",
            env={"PARLOUR_HOME": str(home.path), "PATH": "/usr/bin:/bin"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    async with serving(home, replay=replay):
        code, out, err = await run()
        assert (code, err) == (1, "parlour: the store is down\n")
        assert "Good day." in out
        assert "interrupted after 1 turns" in out
        lines.clear()
        assert await run() == (1, "", "parlour: the store is down\n")


async def test_one_operation_is_one_route(home: Home) -> None:
    """Any HTTP client can list the operations and call one."""
    async with serving(home), plain_client(home) as client:
        listed = (await client.get("/v1")).json()
        assert set(listed["operations"]) == {*OPERATIONS, *CONVERSATIONS}
        response = await client.post("/v1/count", json={"to": 2})
        assert response.headers["content-type"] == "application/x-ndjson"
        assert [json.loads(line) for line in response.text.splitlines()] == [{"line": {"n": 0}}, {"line": {"n": 1}}]


async def test_an_operation_goes_on_without_its_client(home: Home) -> None:
    """A client that disconnects does not cancel what it asked for: half a backup, or half of forgetting."""
    asked, may_end, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: Line) -> AsyncIterator[Line]:
        yield {"n": 0}
        asked.set()
        await may_end.wait()
        has_ended.set()
        yield {"n": 1}

    async with serving(home, slow=slow):
        asking = asyncio.create_task(ask(home, "slow"))
        await asked.wait()
        asking.cancel()
        await asyncio.wait({asking})
        may_end.set()
        async with asyncio.timeout(60):
            await has_ended.wait()
        assert await ask(home, "count", {"to": 1}) == [{"n": 0}]


async def test_a_stop_ends_operations(home: Home) -> None:
    """An operation under way is cancelled, and its client hears that the gateway stopped."""
    started = asyncio.Event()

    async def endless(_: Line) -> AsyncIterator[Line]:
        yield {"n": 0}
        started.set()
        await asyncio.Event().wait()

    async with serving(home, endless=endless):
        asking = asyncio.create_task(ask(home, "endless"))
        await started.wait()
    with pytest.raises(UserError, match="the gateway stopped before it answered"):
        await asking


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
    ("path", "body", "status"),
    [
        ("/v1/count", b"nonsense", 400),
        ("/v1/count", b"[]", 400),
        ("/v1/nothing-of-ours", b"{}", 404),
        ("/v1/count", b'"x"', 400),
        ("/v1/count", b'{"x": "' + b"x" * LONGEST_LINE + b'"}', 413),
    ],
    ids=["no-json", "no-object", "unknown", "bad-arguments", "too-long"],
)
async def test_what_is_no_request_is_answered_and_ended(home: Home, path: str, body: bytes, status: int) -> None:
    """A request that is none costs its sender an error of one line and nobody else."""
    async with serving(home):
        async with plain_client(home) as client:
            response = await client.post(path, content=body)
        assert response.status_code == status
        assert set(response.json()) == {"error", "exit_code"}
        assert "\n" not in response.json()["error"]
        assert await ask(home, "count", {"to": 1}) == [{"n": 0}]


async def test_what_is_no_http_costs_its_sender_the_connection(home: Home) -> None:
    """Bytes of another protocol are answered and the connection is closed."""
    async with serving(home):
        reader, writer = await asyncio.open_unix_connection(str(home.socket))
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
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
    async with AsyncExitStack() as stack:
        async with serving(home):
            client = await stack.enter_async_context(connect(home))
            assert client is not None
            conversation = await stack.enter_async_context(client.converse("echo"))
            await conversation.send({"text": "one"})
            assert await conversation.receive() == {"echo": "one"}
        assert await conversation.receive() is None


async def test_a_home_that_is_held_but_silent_is_said(home: Home) -> None:
    """A gateway that is starting or stopping is no free home: no command takes it for one."""
    with hold_lock(home), pytest.raises(UserError, match="starting or stopping"):
        async with connect(home):
            pass
