"""A key that the provider refuses is told to the owner after one call, and the console shows it."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.alerts.test_alerts_wire import within
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.openai_server import ModelFault, ScriptedAnswer, open_server
from tests.fakes.telegram_server import open_telegram


async def test_one_refused_call_tells_the_owner(tmp_path: Path) -> None:
    """One 401: a message in the owner's own chat, and a firing alert in what the console's first page reads."""
    async with (
        open_server(lambda *_: ScriptedAnswer(fault=ModelFault.UNAUTHORISED)) as model,
        open_telegram() as telegram,
    ):
        telegram.chat(42, "private")
        environment = {
            "PARLOUR_LLM__MODEL": "openai/scripted",
            "PARLOUR_LLM__API_BASE": model.base,
            "PARLOUR_LLM__API_KEY": "sk-x",
            "PARLOUR_CHANNELS__TELEGRAM__TOKEN": telegram.token,
            "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": f"{telegram.base}/bot",
            "PARLOUR_CHANNELS__TELEGRAM__FILE_URL": f"{telegram.base}/file/bot",
            "PARLOUR_OWNERS": "telegram:42",
        }
        async with gateway(home=tmp_path / "home", environment=environment) as parlour:
            await parlour.channel.ask("ann", "hello")
            await within(20, lambda: any("scripted" in line for line in telegram.shown(42)))
            (status,) = [line async for line in parlour.app.operations["status"]({})]
    assert any(each["cause"].startswith("model_fault") and each["state"] == "firing" for each in status["alerts"])
