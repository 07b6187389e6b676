"""The model's library is loaded beside the start, once, and by no message."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.gateway import gateway
from tests.fakes.openai_server import open_server


async def test_the_library_is_loaded_by_the_start_and_by_no_message(tmp_path: Path) -> None:
    """A gateway that nobody writes to loads it; two messages that come meanwhile do not load it again."""
    async with open_server() as model:
        settings = {"MODEL": "openai/test", "API_BASE": model.base, "API_KEY": "x"}
        variables = {f"PARLOUR_LLM__{name}": value for name, value in settings.items()}
        async with gateway(tmp_path / "home", **variables) as process:
            await process.command("send", "web:ann", "hello")
            await process.command("send", "web:ben", "hello")
            await process.wait_logged("turn.done", times=2)
            assert await process.stop() == 0
            assert sum("model.library_loaded" in line for line in process.log) == 1
        async with gateway(tmp_path / "quiet", **variables) as process:
            await process.wait_logged("model.library_loaded")
            assert not any("turn.done" in line for line in process.log)
