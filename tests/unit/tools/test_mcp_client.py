"""The client of MCP servers: whatever a server does, the gateway goes on, and an effect happens once or is unknown."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from agent.mcp.client import McpClient, McpFailed, McpResult, ServerAddress
from tests.fakes.hostile_mcp import HostileServer, hostile_server, packed, tool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[McpClient]:
    """One child for all tests here: a server must not be able to spoil it for others."""
    client = McpClient()
    yield client
    await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[HostileServer]:
    """A server that behaves until it is told not to."""
    async with hostile_server() as found:
        yield found


def address(server: HostileServer, *, is_private: bool = True) -> ServerAddress:
    """Return where *server* is; each has a name of its own."""
    return ServerAddress(name=f"s{server.url.rpartition(':')[2].split('/')[0]}", url=server.url, is_private=is_private)


async def call(client: McpClient, server: HostileServer, *, may_repeat: bool = False) -> McpResult:
    """Call the tool `act` as it is described now."""
    tools, _ = await client.list_tools(address(server))
    digest = next(each.digest for each in tools if each.name == "act")
    return await client.call(address(server), "act", digest, {}, key="t.1", may_repeat=may_repeat)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_call_brings_its_key_and_its_result(client: McpClient, server: HostileServer) -> None:
    """The key is the same when a call is made again, so that a server can tell."""
    result = await call(client, server)
    assert (result.texts, result.is_error, result.is_cut) == (["acted"], False, False)
    assert server.calls[0]["_meta"]["parlour/call"] == "t.1"


async def test_a_private_address_is_not_reached_unless_the_operator_says_so(
    client: McpClient, server: HostileServer
) -> None:
    """By its number or by a name that leads to it."""
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        with pytest.raises(McpFailed, match="not on the public internet") as failed:
            await client.list_tools(ServerAddress(name="inward", url=url))
        assert not failed.value.is_sent
    assert server.seen == []


async def test_a_redirect_elsewhere_is_not_followed(client: McpClient, server: HostileServer) -> None:
    """A server cannot make the gateway ask another one for it."""
    async with hostile_server() as other:
        server.answers["initialize"] = lambda *_: web.Response(status=307, headers={"Location": other.url})
        with pytest.raises(McpFailed):
            await client.list_tools(address(server))
        assert other.seen == []


@pytest.mark.parametrize(
    "answer",
    [
        packed,
        lambda *_: web.Response(body=b"x" * (5 << 20), content_type="application/json"),
        lambda *_: web.Response(text="{", content_type="application/json"),
        lambda *_: web.Response(text="<html>", content_type="text/html"),
        lambda *_: web.Response(status=500),
        lambda *_: {"content": [{"type": "picture"}]},
        lambda *_: {"content": "[" * 50_000},
    ],
    ids=["packed", "large", "no json", "html", "broken", "no result", "nested"],
)
async def test_an_answer_that_is_none_is_an_unknown_outcome(
    client: McpClient, server: HostileServer, answer: Any
) -> None:
    """The call may have happened; the next one, of another server, is not touched."""
    server.answers["tools/call"] = answer
    with pytest.raises(McpFailed) as failed:
        await call(client, server)
    assert failed.value.is_sent
    async with hostile_server() as other:
        assert (await call(client, other)).texts == ["acted"]


async def test_a_server_that_hangs_up_is_an_unknown_outcome(client: McpClient, server: HostileServer) -> None:
    """After the request was sent nobody knows what it did."""

    def hang_up(request: web.Request, _: Mapping[str, Any]) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    server.answers["tools/call"] = hang_up
    with pytest.raises(McpFailed) as failed:
        await call(client, server)
    assert failed.value.is_sent


async def test_a_forgotten_session_is_renewed_and_an_act_not_repeated(client: McpClient, server: HostileServer) -> None:
    """A call that reads is made again; one that acts had been sent, so its outcome is unknown."""
    await call(client, server)
    tools, _ = await client.list_tools(address(server))
    server.is_session_known = False
    result = await client.call(address(server), "act", tools[0].digest, {}, key="t.2", may_repeat=True)
    assert result.texts == ["acted"]
    server.is_session_known = False
    with pytest.raises(McpFailed) as failed:
        await client.call(address(server), "act", tools[0].digest, {}, key="t.3", may_repeat=False)
    assert failed.value.is_sent
    assert [each["_meta"]["parlour/call"] for each in server.calls] == ["t.1", "t.2"]


async def test_a_call_in_flight_is_not_repeated_when_the_list_is_read_again(
    client: McpClient, server: HostileServer
) -> None:
    """A review opens another session; the call goes on over its own, and acts once."""
    began, may_end = asyncio.Event(), asyncio.Event()

    async def act(_: web.Request, message: Mapping[str, Any]) -> Mapping[str, Any]:
        server.calls.append(message["params"])
        began.set()
        await may_end.wait()
        return {"content": [{"type": "text", "text": "acted"}]}

    server.answers["tools/call"] = act
    calling = asyncio.create_task(call(client, server))
    await began.wait()
    await client.list_tools(address(server))
    assert server.sessions == 2
    may_end.set()
    assert (await calling).texts == ["acted"]
    assert len(server.calls) == 1


async def test_a_server_that_asks_instead_of_answering_is_not_answered(
    client: McpClient, server: HostileServer
) -> None:
    """It is called once; nobody is asked for input on its behalf."""

    def ask(_: web.Request, message: Mapping[str, Any]) -> Mapping[str, Any]:
        server.calls.append(message["params"])
        return {"resultType": "input_required", "inputRequests": {}, "requestState": "x"}

    server.answers["tools/call"] = ask
    with pytest.raises(McpFailed):
        await call(client, server)
    assert len(server.calls) == 1


@pytest.mark.parametrize("schema", [{"type": "object", "$ref": "#"}, {"type": "object", "pattern": "("}, {"type": 7}])
async def test_a_schema_that_cannot_be_used_is_an_error_before_anything_is_sent(
    client: McpClient, server: HostileServer, schema: Mapping[str, Any]
) -> None:
    """So nothing has happened."""
    server.tools = [tool("act", schema={**schema, "properties": {"a": {"pattern": "(", "type": "string"}}})]

    async def list_and_call() -> None:  # the SDK itself refuses a list with some of them
        tools, _ = await client.list_tools(address(server))
        await client.call(address(server), "act", tools[0].digest, {"a": "x"}, key="t.1", may_repeat=False)

    with pytest.raises(McpFailed) as failed:
        await list_and_call()
    assert not failed.value.is_sent
    assert server.calls == []


async def test_calls_that_were_stopped_leave_no_request_open(client: McpClient, server: HostileServer) -> None:
    """However many: a server that never answers holds up nobody."""
    began = asyncio.Semaphore(0)

    async def hang(*_: Any) -> None:
        began.release()
        await asyncio.Event().wait()

    server.answers["tools/call"] = hang
    for _ in range(20):
        hanging = asyncio.create_task(call(client, server))
        await began.acquire()
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    del server.answers["tools/call"]
    assert (await call(client, server)).texts == ["acted"]


async def test_a_result_of_wide_characters_is_cut_and_spoils_nothing(client: McpClient, server: HostileServer) -> None:
    """The limit is in bytes, as they travel."""
    server.answers["tools/call"] = lambda *_: {"content": [{"type": "text", "text": "\U0001f600" * 300_000}]}
    result = await call(client, server)
    assert result.is_cut
    assert len(result.texts[0].encode()) <= 1 << 20


async def test_a_tool_that_changed_is_not_called(client: McpClient, server: HostileServer) -> None:
    """Not with another text, another schema, and not when it is gone."""
    digest = (await client.list_tools(address(server)))[0][0].digest
    for changed in (tool("act", "Act. Always."), tool("act", schema={"type": "object"}), tool("other")):
        server.tools = [changed]
        await client.list_tools(address(server))
        with pytest.raises(McpFailed) as failed:
            await client.call(address(server), "act", digest, {}, key="t.1", may_repeat=False)
        assert (failed.value.kind, failed.value.is_sent) == ("changed", False)
    assert server.calls == []


async def test_lists_are_bounded(client: McpClient, server: HostileServer) -> None:
    """In number, in bytes, in pages; what is beyond is counted."""
    server.tools = [tool(f"t{n}") for n in range(100)]
    tools, left_out = await client.list_tools(address(server))
    assert (len(tools), left_out) == (64, 36)
    server.tools = [tool("long", "x" * 5_000), tool("wide", schema={"type": "object", "title": "x" * 9_000})]
    tools, left_out = await client.list_tools(address(server))
    assert [(each.name, len(each.description)) for each in tools] == [("long", 1_024)]
    assert left_out == 1
    pages = iter(range(1_000))
    server.answers["tools/list"] = lambda *_: {"tools": [tool(f"p{next(pages)}")], "nextCursor": "more"}
    assert len((await client.list_tools(address(server)))[0]) == 20


async def test_a_tool_that_runs_only_as_a_task_is_left_out(client: McpClient, server: HostileServer) -> None:
    """As the reference server of the registry lists one: each plain call of it would fail."""
    path = Path(__file__).parents[2] / "payloads" / "mcp" / "everything_task_tool.json"
    task = json.loads(path.read_text("utf-8"))
    server.tools = [task, {**tool("optional"), "execution": {"taskSupport": "optional"}}, tool("plain")]
    tools, left_out = await client.list_tools(address(server))
    assert ([each.name for each in tools], left_out) == (["optional", "plain"], 1)


async def test_results_are_bounded(client: McpClient, server: HostileServer) -> None:
    """In parts and in bytes; a picture is handed over as it came."""
    server.answers["tools/call"] = lambda *_: {"content": [{"type": "text", "text": "x" * 100_000}] * 30}
    result = await call(client, server)
    assert result.is_cut
    assert sum(map(len, result.texts)) <= 1 << 20
    picture = {"type": "image", "data": base64.b64encode(b"\x89PNG").decode(), "mimeType": "image/png"}
    link = {"type": "resource_link", "name": "n", "uri": "file:///etc/passwd"}
    server.answers["tools/call"] = lambda *_: {"content": [picture, link], "isError": True}
    result = await call(client, server)
    assert (result.pictures, result.is_error) == ([b"\x89PNG"], True)
    assert result.texts == ["(a link that is not opened: n, file:///etc/passwd)"]


async def test_a_call_that_is_stopped_ends_at_once(client: McpClient, server: HostileServer) -> None:
    """A server that never answers costs one call; others go on beside it."""
    began = asyncio.Event()

    async def hang(*_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    server.answers["tools/call"] = hang
    hanging = asyncio.create_task(call(client, server))
    await began.wait()
    async with hostile_server() as other:
        assert (await call(client, other)).texts == ["acted"]
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_a_child_that_dies_leaves_the_outcome_unknown_and_is_replaced(server: HostileServer) -> None:
    """Whatever was sent before; the next call starts another."""
    client, began = McpClient(), asyncio.Event()

    async def hang(*_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    server.answers["tools/call"] = hang
    calling = asyncio.create_task(call(client, server))
    await began.wait()
    os.kill(client.process_id(address(server).name), signal.SIGKILL)
    with pytest.raises(McpFailed) as failed:
        await calling
    assert failed.value.is_sent
    del server.answers["tools/call"]
    assert (await call(client, server)).texts == ["acted"]
    await client.close()


async def test_the_child_reaches_no_file_and_no_network(client: McpClient, server: HostileServer) -> None:
    """What a server took over could only answer us. It holds no descriptor but its pipes and its loop's."""
    await call(client, server)
    process = Path(f"/proc/{client.process_id(address(server).name)}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text("utf-8").splitlines())
    assert status["Seccomp"].strip() == "2"
    assert status["NoNewPrivs"].strip() == "1"
    links = [str(each.readlink()) for each in (process / "fd").iterdir()]
    assert not [each for each in links if not each.startswith(("pipe:", "socket:", "anon_inode:", "/dev/null"))]
