"""`parlour status`, the health check of containers, and the stages of a turn."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.app.composition import open_app
from gateway.app.runtime import Runtime
from gateway.control import Line
from gateway.control.registry import bind_group
from gateway.errors import StoreUnavailable, UserError
from gateway.events import SessionKey
from gateway.health import gateway_checks
from gateway.health.checks import HealthCheck
from gateway.operations.gateway import GatewayOperations, status_rows
from gateway.operations.memory import MemoryOperations
from gateway.operations.turns import stage_spans
from gateway.ports.journal import Job, UsageRow
from gateway.settings import load_settings
from gateway.store.inspection import TurnTrace
from tests.fakes.clock import EPOCH
from tests.fakes.turns import answer, next_delivery, parts_of, said


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Runtime]:
    """A home as one command opens it: nothing runs, and background jobs may take 1,000 tokens a day."""
    environment = {"PARLOUR_HOME": str(tmp_path / "home"), "PARLOUR_CAPS__BACKGROUND_TOKENS_PER_DAY": "1000"}
    async with open_app(load_settings(environment), channels=False) as app:
        yield app


async def status(app: Runtime) -> Line:
    """Return the operation's one line."""
    (line,) = [line async for line in GatewayOperations(app).status()]
    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"colour": 1}, "sessions show has no argument colour"),
        ({"limit": 3}, "sessions show needs the argument key"),
        ({"key": ["a"]}, "key must be a text"),
        ({"key": "telegram:42", "limit": "many"}, "limit must be a number"),
    ],
)
async def test_arguments_are_those_that_the_operation_declares(app: Runtime, arguments: Line, line: str) -> None:
    """Another name or type is a mistake of the caller, in one line."""
    operation = bind_group(GatewayOperations(app))["sessions show"]
    with pytest.raises(UserError, match=line):
        _ = [each async for each in operation(arguments)]


async def test_a_text_is_no_answer_to_yes_or_no(app: Runtime) -> None:
    """`"false"` of a script does not erase every copy."""
    operation = bind_group(MemoryOperations(app))["memory forget"]
    with pytest.raises(UserError, match="purge must be true or false"):
        _ = [each async for each in operation({"text": "tea", "purge": "false"})]


async def test_status_names_what_was_given_up(app: Runtime) -> None:
    """A blocked bot's answer: counted, with its channel and the platform's reason, which cannot move the cursor."""
    store = app.store
    line: dict[str, Any] = dict(await status(app))
    assert (line["dead"], line["dead_letters"]) == (0, [])
    await answer(store, said(), "one")
    delivery = await next_delivery(store)
    parts = parts_of(delivery.message, 2)
    await store.outbox.freeze(delivery.message, parts)
    await store.outbox.dead_letter(parts[0], "403: bot was \x1b[2Jblocked by the user")
    line = dict(await status(app))
    (group,) = line["dead_letters"]
    assert (group["channel"], group["count"]) == ("telegram", 2)
    (told,) = [row for row in status_rows([line], {}) if row.startswith("given up ")]
    assert told.endswith("403: bot was [2Jblocked by the user")
    assert "2 to telegram, the latest " in told


FETCHED = [each for each in gateway_checks.CHECKS if each.fetch is not None]


@pytest.mark.parametrize("check", FETCHED, ids=[each.name for each in FETCHED])
async def test_a_part_that_cannot_be_read_is_unknown_and_hides_no_other(
    app: Runtime, check: HealthCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its finding names it; the rest is known, and the store counts as writable."""

    async def fail(_: Runtime) -> None:
        raise StoreUnavailable("the table is gone")

    line = await status_with(replace(check, fetch=fail), app, monkeypatch)
    assert line["unknown"] == {check.name: "the table is gone"}
    assert line["store"] == {"writable": True}
    assert check.name not in line
    assert {each.name for each in FETCHED} - {check.name, "depth"} <= line.keys()
    (found,) = [each for each in line["findings"] if each["id"] == f"status.{check.name}"]
    words = f"{check.name.replace('_', ' ')}: unknown, the store could not be read"
    assert (found["level"], words in found["text"]) == ("WARN", True)
    assert any(found["text"] in row for row in status_rows([line], {}))


async def test_a_part_that_hangs_is_unknown_after_the_deadline(app: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status comes without it."""

    async def hang(_: Runtime) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway_checks, "DEADLINE", timedelta(seconds=1))
    line = await status_with(replace(FETCHED[0], fetch=hang), app, monkeypatch)
    assert line["unknown"] == {FETCHED[0].name: "it does not answer"}


async def status_with(check: HealthCheck, app: Runtime, monkeypatch: pytest.MonkeyPatch) -> Line:
    """Return the status where *check* has taken the place of the one of its name."""
    checks = [check if each.name == check.name else each for each in gateway_checks.CHECKS]
    monkeypatch.setattr(gateway_checks, "CHECKS", checks)
    return await status(app)


def test_each_thing_of_a_gateway_is_checked_once() -> None:
    """A check has one name for all of its readers, and at least one reader."""
    names = [each.name for each in gateway_checks.CHECKS]
    assert len(names) == len(set(names))
    assert [each.name for each in gateway_checks.CHECKS if each.ready is not None] == ["store", "channels"]
    readers = ("find", "read", "fetch", "judge", "alert", "ready")
    assert all(any(getattr(each, reader) for reader in readers) for each in gateway_checks.CHECKS)


async def test_status_says_how_the_work_beside_the_turns_stands(app: Runtime) -> None:
    """What waits and since when, what is planned, what the day has cost: by kind, from the journal, running or not."""
    store = app.store
    now = datetime.now(UTC)
    for n, (kind, due_at) in enumerate(
        (("note", now - timedelta(minutes=5)), ("note", now), ("dream", now + timedelta(hours=2)))
    ):
        await store.jobs.put(Job(id=f"j{n}", kind=kind, scope="people/a", payload={}, due_at=due_at))
    store.journal.spend(
        UsageRow(
            turn="j9",
            person="",
            chat="",
            purpose="dream",
            model="m",
            tokens_in=1_200,
            tokens_out=30,
            tokens_cached=0,
            cost=None,
            at=now,
        )
    )
    line = await status(app)
    counts = {job["kind"]: (job["waiting"], job["later"]) for job in line["jobs"]}
    assert {kind: count for kind, count in counts.items() if any(count)} == {"dream": (0, 1), "note": (2, 0)}
    printed = "\n".join(status_rows([line], {}))
    assert printed.count("\njob ") == 2  # kinds that never ran are left out
    assert re.search(
        r"^job note +0 running, 2 waiting \(the oldest for 30\d s\), 0 later, 0 done, 0 failed$", printed, re.MULTILINE
    )
    assert re.search(
        r"^background +1230 of 1000 tokens today, spent: pending jobs continue tomorrow$", printed, re.MULTILINE
    )


SCRIPT = Path(__file__).parents[3] / "deploy" / "healthcheck.py"


def probe(port: int) -> int:
    """Run the script as the image does; return its exit code."""
    everywhere = "0.0.0.0"  # noqa: S104 - what the container is told; nothing is bound here
    environment = {"PATH": os.environ["PATH"], "PARLOUR_WEB__HOST": everywhere, "PARLOUR_WEB__PORT": str(port)}
    command = [sys.executable, "-I", str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode  # noqa: S603 - ours


def answer_once(listener: socket.socket, status: str, asked: list[bytes]) -> None:
    """Answer one request with a status."""
    connection, _ = listener.accept()
    with connection:
        asked.append(connection.recv(4096))
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())


@pytest.mark.parametrize(("status", "code"), [("200 OK", 0), ("503 Service Unavailable", 1), ("421 Misdirected", 1)])
def test_it_asks_readyz_on_this_machine(status: str, code: int) -> None:
    """A gateway bound to every address is asked on loopback, by a Host that its page accepts."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = threading.Thread(target=answer_once, args=(listener, status, asked))
        server.start()
        assert probe(port) == code
        server.join()
    assert asked[0].startswith(b"GET /readyz HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{port}".encode() in asked[0]


def test_nobody_there_is_not_ready() -> None:
    """A gateway that does not listen is unhealthy, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert probe(port) == 1


def test_it_imports_nothing_of_ours() -> None:
    """It runs every 30 seconds: no import beyond os, socket and sys."""
    imports = [line for line in SCRIPT.read_text().splitlines() if line.startswith(("import", "from"))]
    assert imports == ["import os", "import socket", "import sys"]


def at(seconds: float) -> datetime:
    """Return a moment."""
    return EPOCH + timedelta(seconds=seconds)


def trace(**fields: Any) -> TurnTrace:
    """Return a turn that was sent at 0, accepted at 1, committed at 9 and delivered at 10."""
    given: dict[str, Any] = {
        "turn": "t1",
        "key": SessionKey("telegram", "42"),
        "inbox": ({"sent_at": at(0), "accepted_at": at(1), "ended_at": at(9)},),
        "steps": (),
        "record": {"at": at(8)},
        "parts": ({"state": "sent", "at": at(10)},),
        "usage": (),
        "dead": (),
    }
    return TurnTrace(**(given | fields))


def spans(found: TurnTrace, began: dict[str, datetime]) -> list[tuple[str, float | None]]:
    """Return the names and durations."""
    return [(" ".join(each["stages"]), each["seconds"]) for each in stage_spans(found, began)]


def test_all_nine_stages_of_a_turn_that_this_process_ran() -> None:
    """Each stage ends where the next one begins; the wait in the queue is apart."""
    began = {"claim": at(3), "assemble": at(4), "think": at(5), "commit": at(8)}
    assert spans(trace(), began) == [
        ("receive parse admit accept", 1),
        ("queue", 2),
        ("claim", 1),
        ("assemble", 1),
        ("think", 3),
        ("commit", 1),
        ("deliver", 1),
    ]


def test_what_is_not_known_apart_is_one_span() -> None:
    """After a restart, of a command, of a turn that runs, and of one that a job started."""
    assert spans(trace(), {}) == [
        ("receive parse admit accept", 1),
        ("queue claim assemble think commit", 8),
        ("deliver", 1),
    ]
    assert spans(trace(), {"claim": at(3)})[1:3] == [("queue", 2), ("claim assemble think commit", 6)]
    running = trace(inbox=({"sent_at": at(0), "accepted_at": at(1), "ended_at": None},), record=None, parts=())
    assert spans(running, {"claim": at(3)}) == [
        ("receive parse admit accept", 1),
        ("queue", 2),
        ("claim assemble think commit", None),
    ]
    assert spans(trace(inbox=(), parts=()), {}) == [("deliver", None)]


def test_a_platform_s_clock_that_is_ahead_makes_no_negative_time() -> None:
    """The message was accepted before it was sent, by the platform's clock."""
    ahead = trace(inbox=({"sent_at": at(5), "accepted_at": at(1), "ended_at": at(9)},))
    assert spans(ahead, {})[0] == ("receive parse admit accept", 0)
