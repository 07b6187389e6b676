"""Every command an operator has, as typed, asked of a gateway that runs as a process of its own: through its socket."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.gateway import COMMAND, GatewayProcess, free_port, gateway
from tests.fakes.inprocess_gateway import gateway as pocket_gateway
from tests.faults.process_pool import ForkServer
from tests.unit.ops.test_memory_cli import CommandTerminal
from tests.unit.ops.test_memory_cli import terminal as terminal

TOKEN = f"123456789:AA{'x' * 33}"


class CommandLineOperator:
    """Types commands one after the other and notes which operations they were."""

    def __init__(self, terminal: CommandTerminal) -> None:
        self._terminal = terminal

    async def type(self, *words: str) -> str:
        """Return what a command printed that ended well."""
        return await asyncio.to_thread(self._terminal.well, *words)

    async def lines(self, *words: str) -> list[dict[str, Any]]:
        """Return the lines of a command that is asked for JSON."""
        return await asyncio.to_thread(self._terminal.lines, *words)

    async def refused(self, *words: str) -> str:
        """Return the one line of a command that could not be done."""
        return await asyncio.to_thread(self._terminal.refused, *words)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Collect the names of the operations that go over a socket."""
    from gateway.control import GatewayClient

    names: set[str] = set()
    call = GatewayClient.call

    def noted(client: GatewayClient, name: str, arguments: Any) -> Any:
        names.add(name)
        return call(client, name, arguments)

    monkeypatch.setattr(GatewayClient, "call", noted)
    return names


async def test_every_command_is_answered_by_the_gateway_that_runs(
    terminal: CommandTerminal, tmp_path: Path, asked: set[str], monkeypatch: pytest.MonkeyPatch, zygote: ForkServer
) -> None:
    """Each operation is asked over the socket, and what it answers arrives whole; none is left out."""
    monkeypatch.setenv("PARLOUR_CHANNELS__TELEGRAM__TOKEN", TOKEN)  # for the commands; the gateway opens no Telegram
    operator = CommandLineOperator(terminal)
    more = {
        "PARLOUR_CHANNELS__TELEGRAM__TOKEN": TOKEN,
        "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": "http://127.0.0.1:9/bot",
        "PARLOUR_CHANNELS__API__ENABLED": "true",
    }
    async with gateway(terminal.home, zygote, **more):
        status = (await operator.lines("status"))[0]
        assert status["gateway"] == "running"
        await _say_and_search(operator)
        await _correct_memory(operator, terminal.home)
        await _decide_about_people(operator, tmp_path)
        await _look_after_the_home(operator, tmp_path)
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        code, out, _ = await asyncio.to_thread(terminal.run, "people", "forget", "web:ann")
        assert (code, "No memory of their own is stored" in out) == (1, True)
        listed = await _list_routes(terminal.home)
    async with pocket_gateway(home=tmp_path / "names") as other:
        every = set(other.app.operations)
    # These have no command: the console asks them, and test_console.py the console.
    assert every - asked == {
        *("backups create", "backups list", "backups verify", "chats change", "chats list", "chats preview"),
        *("mcp add", "mcp allow", "mcp list", "mcp remove", "mcp review", "mcp show"),  # of agent/test_mcp.py
        # of agent/test_mcp_logins.py
        *("mcp login", "mcp logins", "mcp logout", "mcp preview-login", "mcp reset-logins"),
        *("chats settings", "doctor", "logs"),
        "chat file",  # by `parlour chat`, for a file of an answer
        "replay plan",  # by `parlour replay --last`, for its question
        "setup learned",  # by the doctor and `parlour init`
        *("setup model", "setup models", "setup platform", "setup restart", "setup servers", "setup status"),
        *("tasks list", "tasks runs", "tasks stop"),
        *("turns find", "turns prompt", "turns show"),
    }
    assert listed == every | {"chat attach"}


async def _list_routes(home: Path) -> set[str]:
    """Call the API as another program does, and return the operations that it lists."""
    transport = httpx.AsyncHTTPTransport(uds=str(home / "control.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        status = await client.post("/v1/status", content=b"{}")
        assert (status.status_code, status.json()["line"]["gateway"]) == (200, "running")
        refused = await client.post("/v1/owner/remove", json={"who": "telegram:8"})
        assert (refused.status_code, refused.json()["exit_code"]) == (400, 2)
        return set((await client.get("/v1")).json()["operations"])


async def _chat(process: GatewayProcess, typed: str) -> tuple[int | None, str, str]:
    """Run `parlour chat` with *typed* on its standard input; return exit code, output and errors."""
    chat = await asyncio.create_subprocess_exec(
        COMMAND,
        "chat",
        env=process.environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await chat.communicate(typed.encode())
    return chat.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("is_running", [True, False], ids=["attached", "on its own"])
async def test_a_terminal_chats_with_or_without_a_gateway(tmp_path: Path, is_running: bool, zygote: ForkServer) -> None:
    """A message per line of standard input is answered: by the gateway that runs, over its socket, or by our own."""
    process = GatewayProcess(tmp_path / "home", free_port(), zygote)
    try:
        if is_running:
            await process.start()
        code, out, err = await _chat(process, "remember: I like oolong\nand what is the weather like?\n")
        assert (code, err) == (0, "")
        assert "oolong" in out
        if is_running:
            assert "oolong" in await process.command("sessions", "show", "console:owner")
    finally:
        await process.close()


async def test_a_terminal_hears_why_it_cannot_attach(tmp_path: Path, zygote: ForkServer) -> None:
    """With the console switched off the command says which setting switches it on."""
    async with gateway(tmp_path / "home", zygote, PARLOUR_CHANNELS__CONSOLE__ENABLED="false") as process:
        code, _, err = await _chat(process, "hello\n")
        assert (code, err.strip()) == (2, "parlour: the console is disabled; set channels.console.enabled to true")


async def _say_and_search(operator: CommandLineOperator) -> None:
    reference = re.search(r"accepted as (\S+)\n", await operator.type("send", "web:owner", "remember: I like oolong"))
    assert reference is not None
    await operator.type("send", "web:owner", "and what is the weather like?")
    for _ in range(200):
        said = [line["text"] for line in await operator.lines("sessions", "show", "web:owner")]
        if len(said) >= 4:
            break
    assert any("oolong" in text for text in said)
    assert [line["key"] for line in await operator.lines("sessions", "list")] == ["web:owner"]
    assert (await operator.lines("turn", reference[1]))[0]["turn"].startswith(reference[1])
    story = await operator.type("turn", reference[1])
    assert f"turn {reference[1]}" in story
    assert "  answered at " in story
    assert "part 1.1: sent at " in story
    assert "oolong" not in story
    assert "answered" in await operator.type("activity")
    assert (await operator.lines("replay", reference[1]))[0]["differences"] == []
    # A hit has a field `end`, which was once taken for the end of the answer.
    hits = await operator.lines("search", "oolong", "--scope", "web:owner")
    assert any("oolong" in hit["text"] for hit in hits)
    assert "oolong" in await operator.type("search", "oolong", "--scope", "web:owner")
    assert {each["state"] for each in await operator.lines("tools")} == {"on", "off"}
    assert await operator.lines("usage") == await operator.lines("usage", "--by", "day")


async def _correct_memory(operator: CommandLineOperator, home: Path) -> None:
    at = ("--scope", "web:owner")
    assert "people/web%3aowner" in await operator.type("memory")
    # An edit of the file is a change like any other. What `send` says keeps nothing: nobody typed it in the chat.
    document = home / "people/web%3aowner/memory/MEMORY.md"
    document.parent.mkdir(mode=0o700)
    document.write_text("- I like oolong\n", "utf-8")
    await operator.type("mirror", "rebuild", *at)
    assert "oolong" in await operator.type("memory", "show", *at)
    (why,) = await operator.lines("memory", "why", "oolong", *at)
    change = why["change"]["sha"]
    assert "oolong" in await operator.type("memory", "diff", change, *at)
    assert change in await operator.type("memory", "log", *at)
    await operator.refused("memory", "dream", *at)  # the model that is built in has no dreams
    assert "is undone" in await operator.type("memory", "undo", change, *at)
    assert "nothing matches" in await operator.type("memory", "forget", "xylophone", *at)
    assert "messages" in await operator.type("memory", "forget", "oolong", "--yes", *at)
    assert await operator.lines("search", "oolong", *at) == []


async def _decide_about_people(operator: CommandLineOperator, folder: Path) -> None:
    await operator.type("people", "allow", "telegram:42")
    await operator.type("people", "block", "telegram:666")
    assert {line["who"] for line in await operator.lines("people", "list", "telegram")} >= {"42", "666"}
    await operator.type("people", "remove", "telegram:42")
    (ann,) = await operator.lines("people", "quota", "web:dave", "--tokens", "100000")
    assert (ann["quota"], ann["role"]) == ({"turns": None, "tokens": 100_000, "usd": None}, "member")
    assert "person-tokens: " in await operator.type("people", "quota", "web:dave")
    assert (await operator.lines("people", "quota"))[0]["whom"] == "web:dave"
    assert "2.5 US dollars a day" in await operator.type("people", "quota", "web:dave", "--usd", "2.50")
    assert "person-cost: $0.00 of $2.50" in await operator.type("people", "quota", "web:dave")
    await operator.refused("people", "quota", "web:dave", "--usd", "1e3")
    await operator.type("people", "quota", "web:dave", "--tokens", "default", "--usd", "default")
    assert await operator.lines("people", "quota") == []
    await operator.type("owner", "add", "telegram:77")
    await operator.type("owner", "remove", "telegram:77")
    assert await operator.lines("people", "audit")
    assert "no requests are pending" in await operator.type("people", "pending")
    await operator.refused("people", "approve", "telegram:7")
    await operator.refused("people", "deny", "telegram:7")
    await operator.refused("people", "link", "telegram:1", "telegram:2")
    await operator.type("why", "telegram")
    assert "code" in await operator.type("owner", "claim")
    await operator.type("owner", "list")
    await operator.refused("owner", "remove", "telegram:8")
    assert (await operator.lines("web", "login", "--as", "ann"))[0]
    (invited,) = await operator.lines("web", "invite", "zoe", "--days", "2")
    assert (invited["as"], len(invited["code"])) == ("zoe", 19)
    for wrong in (("zoe", "--days", "0"), ("zoe", "--days", "31"), ("owner",), ("Zoe!",)):
        await operator.refused("web", "invite", *wrong)
    assert re.search(r"zoe +member +not logged in, seen never, invited until \d", await operator.type("web", "logins"))
    assert await operator.lines("web", "logout", "zoe") == [{"who": "zoe", "browsers": 0}]
    await operator.refused("web", "logout", "nobody")
    (key,) = await operator.lines("web", "key", "--as", "eve")
    assert [(line["id"], line["who"]) for line in await operator.lines("web", "keys")] == [(key["id"], "eve")]
    assert key["key"] not in json.dumps(await operator.lines("web", "revoke", key["id"]))
    assert await operator.lines("web", "keys") == []
    assert await operator.lines("promises") == []
    await operator.type("people", "export", "web:owner", str(folder / "owner.zip"))
    assert "nothing is stored about web:nobody" in await operator.refused("people", "forget", "web:nobody", "--yes")
    assert await operator.lines("people", "audit", "web:nobody") == []


async def _look_after_the_home(operator: CommandLineOperator, folder: Path) -> None:
    assert (folder / "owner.zip").stat().st_size > 0
    assert "the quarantine is empty" in await operator.type("quarantine", "list")
    await operator.refused("quarantine", "drop", "event")
    await operator.refused("quarantine", "replay", "event")
    assert "files" in await operator.type("backup", str(folder / "now.tar.gz"))
    assert "removed" in await operator.type("prune")
    assert "the store is whole" in await operator.type("store", "check")
    assert "is forgotten" in await operator.type("people", "forget", "web:owner", "--yes")
    assert "is forgotten" in await operator.type("people", "forget", "web:owner", "--yes")  # idempotent
