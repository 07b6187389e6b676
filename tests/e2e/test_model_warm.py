"""What a gateway does beside its start: it loads the model's library, and tries what confines its children."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from agent.attachments.process_confinement import probe_confinement
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.openai_server import open_server
from tests.faults.process_pool import ForkServer

# `parlour` as the command runs it, and afterwards what it has imported.
PROBE = """
import sys
from gateway.main import main
try:
    main()
except SystemExit:
    pass
names = ("litellm", "openai", "tiktoken", "httpx", "pygments", "typer", "uvicorn.supervisors")
print("LOADED", *[name for name in names if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("client", "loaded"), [("auto", "LOADED"), ("litellm", "LOADED litellm openai tiktoken httpx")]
)
async def test_the_library_is_loaded_by_the_start_and_by_no_message(
    client: str, loaded: str, tmp_path: Path, zygote: ForkServer
) -> None:
    """Two messages that come meanwhile do not load it again, and a gateway that nobody writes to loads it too.

    Whole turns over a server with OpenAI's protocol import neither litellm nor what it brings.
    """
    async with open_server() as model:
        settings = {"MODEL": "openai/test", "API_BASE": model.base, "API_KEY": "x", "CLIENT": client}
        variables = {f"PARLOUR_LLM__{name}": value for name, value in settings.items()}
        process = GatewayProcess(tmp_path / "home", free_port(), **variables)
        process.program = (sys.executable, "-c", PROBE)
        sender = GatewayProcess(process.home, process.port, zygote, **variables)
        try:
            await process.start()
            await sender.command("send", "web:ann", "hello")
            await sender.command("send", "web:ben", "hello")
            await process.wait_logged("turn.done", times=2)
            assert await process.stop() == 0
            events = [line for line in process.log if "app.ready" in line or "model.library_loaded" in line]
            assert ["app.ready" in line for line in events] == [True, False]
            assert process.log[-1] == loaded
            assert len(model.bodies) == 2
            if client == "litellm":
                return  # what follows is the same start, and litellm takes its seconds
            process.log.clear()
            await process.start()
            await process.wait_logged("model.library_loaded")
            assert not any("turn.done" in line for line in process.log)
            assert await process.stop() == 0
            assert process.log[-1] == loaded
        finally:
            await process.close()


async def test_a_start_says_what_confines_the_children(tmp_path: Path, zygote: ForkServer) -> None:
    """The line is what a child has tried, and no message waits for it."""
    process = GatewayProcess(tmp_path / "home", free_port(), zygote)
    try:
        await process.start()
        await process.wait_logged("children.confined")
        (line,) = [each for each in process.log if "children.confined" in each]
        assert await asyncio.to_thread(probe_confinement) in line
    finally:
        await process.close()
