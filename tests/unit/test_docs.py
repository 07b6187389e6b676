"""The documents are true: every knob and figure is in its table, every path exists, every example runs."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from agent.commands.command import CommandRouter
from agent.llm.chat_model import ChatRequest, ModelConfig
from agent.tools.tool import JsonArguments, Tool
from gateway.errors import ToolFailed
from gateway.events import OutboundMessage
from gateway.settings import ChannelSettings, InstalledPlugins, Settings, check_settings
from gateway.settings.chat_settings import ChatSettings, ProfileSettings
from gateway.web.metrics import METRICS, MetricKind
from tests import links
from tests.fakes.llm_context import context
from tests.fakes.tern import TernHarness, open_tern
from tests.fakes.web_services import FakePageServices

ROOT = Path(__file__).resolve().parents[2]
DOCS = {name: (ROOT / name).read_text("utf-8") for name in sorted(links.tracked(ROOT)) if name.endswith(".md")}


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of every table row of a page."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


# -- settings


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield every knob's variable and its default."""
    for name, field in model.model_fields.items():
        if path == () and name in {"home", "chats", "channels", "profiles"}:
            continue  # the page describes these in words
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, (*path, name))
        else:
            yield (
                "PARLOUR_" + "__".join((*path, name)).upper(),
                "the machine's" if field.default_factory else field.default,
            )


def format_default(default: object) -> str:
    """Return a default as the page writes it."""
    if default in (None, "", (), {}):
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return str(default) if default == "the machine's" else f"`{default}`"


def test_every_knob_is_on_the_settings_page_with_its_default() -> None:
    """docs/settings.md has each knob once, with the default that the code has, and none that is not there."""
    on_page = [
        (cells[0].strip("`"), cells[1]) for cells in rows(DOCS["docs/settings.md"]) if cells[0].startswith("`PARLOUR_")
    ]
    ours = [(name, default) for name, default in on_page if not name.startswith("PARLOUR_CHANNELS__")]
    assert sorted(ours) == sorted((name, format_default(default)) for name, default in leaves(Settings))


def test_every_field_of_a_channel_block_is_on_the_settings_page() -> None:
    """The common part of a block, and what each kind adds to it, with their defaults."""
    blocks = DOCS["docs/settings.md"].partition("## Channel blocks")[2].partition("## One chat")[0]
    page = {cells[0].strip("`"): cells[1] for cells in rows(blocks)}
    for name, field in ChannelSettings.model_fields.items():
        assert page[name] == format_default(field.default), name
    kinds = InstalledPlugins.installed()
    for kind in kinds.names():
        model = kinds.model(kind)
        assert model is not None
        for name, field in model.model_fields.items():
            if name not in ChannelSettings.model_fields or field.default != ChannelSettings.model_fields[name].default:
                assert page[f"PARLOUR_CHANNELS__{kind}__{name}".upper()] == format_default(field.default)


def test_every_setting_of_a_chat_and_of_a_profile_is_on_the_settings_page() -> None:
    """Each by its dotted name, in the table of its section."""
    _, chats, profiles = re.split(r"^## (?:One chat|Profiles)\n", DOCS["docs/settings.md"], flags=re.MULTILINE)
    for text, model in ((chats, ChatSettings), (profiles, ProfileSettings)):
        page = {name for cells in rows(text) for name in re.findall(r"`([a-z_0-9.]+)`", cells[0])}
        names = (name.removeprefix("PARLOUR_CHAT__") for name, _ in leaves(model, ("chat",)))
        assert page == {name.replace("__", ".").lower() for name in names}


def test_the_configuration_examples_are_understood(tmp_path: Path) -> None:
    """Each YAML example of the settings page is read without a mistake."""
    secret = tmp_path / "secret"
    secret.write_text("123456789:AA" + "a" * 33)
    for text in re.findall(r"```yaml\n(.*?)```", DOCS["docs/settings.md"], re.DOTALL):
        (tmp_path / "parlour.yaml").write_text(re.sub(r"/run/secrets/[a-z-]+", str(secret), text))
        report = check_settings({"PARLOUR_HOME": str(tmp_path)})
        assert not report.mistakes
        assert not report.warnings


def test_the_example_of_an_environment_names_known_knobs(tmp_path: Path) -> None:
    """Every line of .env.example that has a value is understood once it is uncommented, and no name is missing."""
    text = (ROOT / ".env.example").read_text("utf-8")
    lines = dict(re.findall(r"^#(PARLOUR_\w+)=(.*)$", text, re.MULTILINE))
    given = {name: value for name, value in lines.items() if value and not name.startswith("PARLOUR_CHANNELS__")}
    report = check_settings(given | {"PARLOUR_HOME": str(tmp_path)})
    assert not report.mistakes
    containers = {"PARLOUR_HOME", "PARLOUR_WEB__HOST", "PARLOUR_WEB__PORT"}
    ours = {name for name in lines if not name.startswith("PARLOUR_CHANNELS__")}
    assert ours == {name for name, _ in leaves(Settings)} - containers
    mend = "run: python deploy/env_example.py > .env.example"
    assert text == run_path(str(ROOT / "deploy/env_example.py"))["render"](DOCS["docs/settings.md"]), mend


# -- figures


def test_every_metric_is_on_the_monitoring_page() -> None:
    """docs/monitoring.md has each metric under the name Prometheus shows, with its labels."""
    suffix = {MetricKind.COUNT: "_total", MetricKind.GAUGE: "", MetricKind.TIME: ""}
    ours = {f"parlour_{metric.name}{suffix[metric.kind]}": ", ".join(metric.labels) for metric in METRICS}
    page = {
        cells[0].strip("`"): cells[1] for cells in rows(DOCS["docs/monitoring.md"]) if cells[0].startswith("`parlour_")
    }
    assert page == {name: labels or "–" for name, labels in ours.items()}


# -- paths

_PATH = re.compile(r"`((?:gateway|channels|agent|tests|deploy|docs)/[a-z0-9_./-]*)`")


def test_every_path_that_a_page_names_exists() -> None:
    """A file that was renamed is renamed in the documents too."""
    files = links.tracked(ROOT)
    folders = {str(parent) for name in files for parent in Path(name).parents}
    for page, text in DOCS.items():
        for path in _PATH.findall(text):
            assert path.rstrip("/") in files | folders or path == "gateway/ports.py", f"{page} names {path}"


_TEST = re.compile(r"`([a-z0-9_/]+\.py)::(\w+)`")


def test_every_promise_has_a_test_that_exists() -> None:
    """docs/tests.md names a test for each promise; one that is renamed or removed is noticed here."""
    promises = [cells for cells in rows(DOCS["docs/tests.md"].partition("## Crashes")[0]) if cells[0] != "promise"]
    assert len(promises) > 90
    for promise, tests in promises:
        assert _TEST.search(tests), promise
        for path, name in _TEST.findall(tests):
            file = ROOT / "tests" / path
            assert file.is_file(), f"{promise}: {path}"
            assert f"def {name}(" in file.read_text("utf-8"), f"{promise}: {path}::{name}"


# -- examples


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the example of docs/extending.md whose first line is ``# <name>``, as a module."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", DOCS["docs/extending.md"], re.DOTALL)
    module = ModuleType(re.sub(r"\W", "_", name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(dict(blocks)[name], name, "exec"), module.__dict__)  # noqa: S102 -- our own document
    return module


async def test_the_tool_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dice roll, and refuse what cannot be rolled."""
    roll: Tool = example("parlour_dice.py", monkeypatch).roll
    assert str(await roll.run(context(), sides=6, dice=3)).count(" ") == 2
    assert not isinstance(roll.arguments, JsonArguments)
    assert set(roll.arguments.model_fields) == {"sides", "dice"}
    with pytest.raises(ToolFailed):
        await roll.run(context(), dice=1000)


def test_the_command_example_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decorator takes it; its help stands under the key the page names."""
    flip = example("agent/commands/coin.py", monkeypatch).flip
    assert (flip.name, flip.help) == ("flip", "commands.help_flip")


async def test_the_model_example_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parrot repeats, streamed or not."""
    model = example("parlour_parrot.py", monkeypatch).open_model(ModelConfig(model="parrot"))
    heard: list[str] = []
    request = ChatRequest(messages=[{"role": "user", "content": "hello"}], turn="t")
    reply = await model.complete(request, sink=heard.append)
    assert (reply.text, heard) == ("hello", ["hello"])


async def test_the_channel_example_plays_a_turn() -> None:
    """Over real HTTP: a file in, a reaction while the turn runs, the answer. The contract suite runs on it as well."""
    block = DOCS["docs/adding-a-channel.md"].partition("```python\n# parlour_tern/__init__.py")[2].partition("```")[0]
    assert block.count("\n") < 250
    harness, services = TernHarness(), FakePageServices()
    services.state.unanswered = {"m1"}
    async with open_tern() as server:
        channel: Any = harness.kind.open(services.context("tern", harness.settings(server)))
        running = asyncio.create_task(channel.run(), name="channel tern")
        try:
            server.files["f1"] = b"plan"
            server.say("/help", "m1", files=[{"id": "f1", "name": "plan.txt", "size": 4}])
            (message,) = await services.wait_deliveries(1)
            assert (str(message.key), message.text, message.command) == ("tern:r1", "/help", "/help")
            assert b"".join([chunk async for chunk in channel.fetch(message.attachments[0])]) == b"plan"
            assert (await channel.sender(message)).is_admin
            while server.reactions != {("m1", "eyes")}:
                await server.wait_changed()
            services.state.unanswered.clear()
            (part,) = channel.render(OutboundMessage(id="t1.1", key=message.key, text="**hi**"))
            receipt = await channel.send(part)
            channel.remove_reactions(message.key)
            found = await channel.find(part)
            assert (found.part, found.message_id) == (receipt.part, receipt.message_id)
            while server.reactions:
                await server.wait_changed()
            assert [each["text"] for each in server.messages] == ["hi"]
        finally:
            running.cancel()
            await asyncio.wait({running})
            await channel.close()


# -- commands


def test_every_command_stands_on_a_page_for_people() -> None:
    """Whoever writes to the bot, or is admin where it is, finds each command there."""
    told = DOCS["docs/using.md"] + DOCS["docs/admins.md"]
    missing = [each.name for each in CommandRouter.load().commands if not re.search(rf"`/{each.name}\b", told)]
    assert not missing
