"""A real SearX of Debian's package `searx`, whose one engine is a server of ours: its JSON is what we read.

`PARLOUR_TEST_SEARX` names the folder that the package and what it depends on were unpacked into; without it, an
installed one is used.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from agent.web.search_engines import SearchAccess, clean_hits, open_searxng
from agent.web.web_tools import WebPages
from gateway.errors import ToolFailed

FOLDER = Path(os.environ.get("PARLOUR_TEST_SEARX", "/"))
PACKAGES, EXAMPLE = FOLDER / "usr/lib/python3/dist-packages", FOLDER / "usr/share/doc/searx/examples/settings.yml"
PYTHON = "/usr/bin/python3"  # Debian's own, which the package is for

pytestmark = pytest.mark.skipif(
    not (PACKAGES / "searx").is_dir() or not EXAMPLE.exists(), reason="needs Debian's searx"
)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def searx(folder: Path, engine: str) -> AsyncIterator[str]:
    """Run it over *engine*; yield its address once it answers."""
    port = free_port()
    settings = yaml.safe_load(EXAMPLE.read_text("utf-8"))
    settings["server"] |= {"port": port, "bind_address": "127.0.0.1", "secret_key": "for-a-test", "limiter": False}
    shared = FOLDER / "usr/share/python3-searx"
    settings["ui"] |= {"static_path": str(shared / "static"), "templates_path": str(shared / "templates")}
    settings["search"] = {**settings.get("search", {}), "formats": ["html", "json"]}
    settings["engines"] = [
        {
            "name": "local",
            "engine": "json_engine",
            "shortcut": "lo",
            "categories": "general",
            "search_url": engine + "?q={query}",
            "results_query": "found",
            "url_query": "address",
            "title_query": "name",
            "content_query": "words",
            "enable_http": True,
            "time_range_support": True,
        }
    ]
    file = folder / "settings.yml"
    file.write_text(yaml.safe_dump(settings), "utf-8")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGES), "SEARX_SETTINGS_PATH": str(file)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PYTHON, "-m", "searx.webapp"], env=environment, cwd=folder, stdout=log, stderr=log)  # noqa: ASYNC220, S603
        try:
            await _wait_for(port, process, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        if process.poll() is not None:
            break
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        writer.close()
        return
    raise AssertionError(log.read_text("utf-8")[-2_000:])  # noqa: ASYNC240 - the test ends here


async def test_a_real_instance_answers_in_the_format_that_is_read(tmp_path: Path) -> None:
    """Results come with title, address and text; hostile ones are dropped as anywhere; a wrong address is an error."""
    queries: list[str] = []

    async def find(request: web.Request) -> web.Response:
        queries.append(request.query["q"])
        return web.json_response(
            {
                "found": [
                    {"address": "https://ferry.example/", "name": "Ferry", "words": "It crosses in 40 minutes."},
                    {"address": "http://192.168.1.1/", "name": "Router", "words": "Log in."},
                ]
            }
        )

    app = web.Application()
    app.router.add_get("/find", find)
    server = TestServer(app)
    await server.start_server()
    pages = WebPages()
    try:
        async with searx(tmp_path, f"http://127.0.0.1:{server.port}/find") as address:
            engine = open_searxng(SearchAccess(url=address, key="", proxy="", client=pages.client))
            hits = clean_hits(await engine.search("ferry & co", count=8, language="en", since="month"), 8)
            lost = open_searxng(SearchAccess(url=f"{address}/nowhere", key="", proxy="", client=pages.client))
            with pytest.raises(ToolFailed, match="status 404"):
                await lost.search("ferry", count=8, language="", since="")
    finally:
        await server.close()
    assert queries == ["ferry & co"]
    assert [(hit.title, hit.url, hit.snippet) for hit in hits] == [
        ("Ferry", "https://ferry.example/", "It crosses in 40 minutes.")
    ]
