"""OpenTelemetry of a whole gateway, as a receiver of OTLP gets it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.llm.chat_model import TokenUsage
from agent.llm.scripted_model import ScriptedModel, ScriptEntry
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.app import context
from gateway.errors import SettingsError
from tests.fakes.conditions import eventually
from tests.fakes.gateway import gateway as gateway_process
from tests.fakes.held_model import calls
from tests.fakes.inprocess_gateway import STREAMING, gateway
from tests.fakes.otlp_receiver import attributes_of, open_receiver
from tests.fakes.proxies import open_socks
from tests.faults.process_pool import ForkServer

STAGES = ("receive", "parse", "admit", "accept", "claim", "assemble", "think", "commit", "deliver")
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_METRIC_EXPORT_INTERVAL": "100", "OTEL_SERVICE_NAME": "bot-of-ann"}
ON = {"PARLOUR_OTEL__ENABLED": "true"}
# As the conventions for generative AI write them.
TOKEN_BOUNDS = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]
SECOND_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


@tool("Look at a place.", kind=ToolKind.LOOK)
async def look(context: ToolContext, place: str) -> str:
    """Look."""
    return f"{place} is dripping"


def scripted() -> ScriptedModel:
    """Return a model that looks at the roof, then answers."""
    return ScriptedModel([calls(("look", json.dumps({"place": "attic"}))), ScriptEntry(text="A leaky one.")])


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Set the variables of the SDK, which reads the environment of the process."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


async def test_a_message_is_one_trace_over_the_nine_stages(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stages, model calls and tools are below the turn, with the conventions' names, and no word of a person."""
    async with open_receiver() as receiver:
        otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.base)
        async with gateway(home=tmp_path / "home", model=scripted(), tools=(look,), environment=ON) as parlour:
            await parlour.channel.ask("c1", "How is the chimney?")
            await parlour.idle()
            await receiver.until(lambda: {"turn", "deliver"} <= {span.name for span in receiver.spans})
            await receiver.until(lambda: "parlour.turn_seconds" in receiver.metrics)
        spans = receiver.trace("turn")
        by_name = {span.name: span for span in spans}
        (root,) = [span for span in spans if not span.parent_span_id]
        assert sorted(span.name for span in spans) == sorted(
            [*STAGES, "turn", "chat scripted", "chat scripted", "execute_tool look"]
        )
        assert root.name == "turn"
        assert {by_name[name].parent_span_id for name in STAGES} == {root.span_id}
        inside = {by_name["chat scripted"].parent_span_id, by_name["execute_tool look"].parent_span_id}
        assert inside == {by_name["think"].span_id}
        order = [by_name[name].start_time_unix_nano for name in STAGES[3:]]
        assert order == sorted(order)
        chat, call = attributes_of(by_name["chat scripted"]), attributes_of(by_name["execute_tool look"])
        assert (chat["gen_ai.operation.name"], chat["gen_ai.request.model"]) == ("chat", "scripted")
        assert {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.response.model"} <= set(chat)
        assert (call["gen_ai.operation.name"], call["gen_ai.tool.name"]) == ("execute_tool", "look")
        assert attributes_of(root)["parlour.outcome"] == "answered"
        assert "bot-of-ann" in receiver.services
        assert receiver.metrics["parlour.turns"].sum.data_points[0].as_int == 1
        for word in (b"chimney", b"attic", b"dripping", b"leaky", b"Ann"):
            assert word not in receiver.bytes


async def test_model_calls_are_the_conventions_histograms(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Duration, tokens and chunks have the buckets and attributes that the conventions name, and no others."""
    answer = ScriptEntry(text="It draws well, and the bricks are dry.", tokens=TokenUsage(input=1_500, output=9))
    script = ScriptedModel([answer, ScriptEntry(error="refused")], name="azure/roof-expert")
    async with open_receiver() as receiver:
        otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.base)
        async with gateway(home=tmp_path / "home", model=script, environment=ON, capabilities=STREAMING) as parlour:
            await parlour.channel.ask("c1", "How is the chimney?")
            await parlour.channel.ask("c1", "And the attic?")
        metrics = {name[14:]: each.histogram.data_points for name, each in receiver.metrics.items() if "gen_ai" in name}
    assert set(metrics) == {
        "token.usage",
        "operation.duration",
        "operation.time_to_first_chunk",
        "operation.time_per_output_chunk",
    }
    assert [list(point.explicit_bounds) for point in metrics["token.usage"]] == [TOKEN_BOUNDS] * 2
    for name in ("operation.duration", "operation.time_to_first_chunk", "operation.time_per_output_chunk"):
        assert {tuple(point.explicit_bounds) for point in metrics[name]} == {SECOND_BOUNDS}
    call = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "azure.ai.openai",
        "gen_ai.request.model": "roof-expert",
        "parlour.purpose": "answer",
    }
    tokens = {attributes_of(point)["gen_ai.token.type"]: point for point in metrics["token.usage"]}
    assert {kind: (point.count, point.sum) for kind, point in tokens.items()} == {
        "input": (1, 1_500),
        "output": (1, 9),
    }
    assert attributes_of(tokens["input"]) == call | {"gen_ai.token.type": "input"}
    answered, refused = sorted(map(attributes_of, metrics["operation.duration"]), key=len)
    assert (answered, refused) == (call, call | {"error.type": "ModelRefused"})
    (first,), (following,) = metrics["operation.time_to_first_chunk"], metrics["operation.time_per_output_chunk"]
    assert (first.count, attributes_of(first)) == (1, call)
    assert following.count == 2  # three pieces of the answer


async def test_texts_are_exported_only_where_that_is_set(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With `otel.content`, the spans have prompt, answer, arguments and result."""
    async with open_receiver() as receiver:
        otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.base)
        on = {**ON, "PARLOUR_OTEL__CONTENT": "true"}
        async with gateway(home=tmp_path / "home", model=scripted(), tools=(look,), environment=on) as parlour:
            await parlour.channel.ask("c1", "How is the chimney?")
            await receiver.until(lambda: "turn" in {span.name for span in receiver.spans})
        chats = [attributes_of(span) for span in receiver.spans if span.name == "chat scripted"]
        (call,) = [attributes_of(span) for span in receiver.spans if span.name == "execute_tool look"]
    assert "How is the chimney?" in json.loads(chats[0]["gen_ai.input.messages"])[-1]["parts"][0]["content"]
    assert json.loads(chats[1]["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": "A leaky one."}]
    assert call["gen_ai.tool.call.result"] == "attic is dripping"


async def test_merged_messages_are_linked_to_their_turn(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second message was received in a trace of its own, to which the turn has a link."""
    async with open_receiver() as receiver:
        otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.base)
        async with gateway(
            home=tmp_path / "home", model=ScriptedModel([ScriptEntry(text="Two.")]), environment=ON
        ) as one:
            await one.channel.say("c1", "first", album="a")
            _, answered = await one.channel.say("c1", "second", album="a")
            await answered
            await receiver.until(lambda: "turn" in {span.name for span in receiver.spans})
        (turn,) = [span for span in receiver.spans if span.name == "turn"]
        received = {span.trace_id for span in receiver.spans if span.name == "receive"}
    assert {link.trace_id for link in turn.links} == received - {turn.trace_id}
    assert len(received) == 2


def stored_results(home: Path) -> int:
    """Return the number of stored results of tools."""
    with closing(sqlite3.connect(f"file:{home / 'journal.db'}?mode=ro", uri=True)) as journal:
        (found,) = journal.execute("SELECT count(*) FROM step WHERE kind = 'result'").fetchone()
    return int(found)


async def test_the_turn_of_a_killed_gateway_stays_in_its_trace(tmp_path: Path, zygote: ForkServer) -> None:
    """What the killed process did and what the next one does with its turn are one trace."""
    script = tmp_path / "script.json"
    first = [{"calls": [{"name": "memory_search", "arguments": {"query": "roof"}}]}, {"text": "never", "delay": 600}]
    async with open_receiver() as receiver:
        settings = {
            **ON,
            **QUICK,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.base,
            "PARLOUR_LLM__MODEL": f"scripted:{script}",
        }
        script.write_text(json.dumps(first))
        async with gateway_process(tmp_path / "home", zygote, **settings) as process:
            await process.command("send", "web:owner", "How is the roof?")
            await receiver.until(lambda: "execute_tool memory_search" in {span.name for span in receiver.spans})
            await eventually(lambda: stored_results(tmp_path / "home") == 1)  # or the next process runs the tool again
            await process.kill()
            assert "turn" not in {span.name for span in receiver.spans}
            script.write_text(json.dumps([{"text": "Dry."}]))
            await process.start()
            await receiver.until(lambda: {"turn", "deliver"} <= {span.name for span in receiver.spans})
            await process.stop()
        spans = receiver.trace("turn")
        names = [span.name for span in spans]
        think = next(span for span in spans if span.name == "think")
        tool_span = next(span for span in spans if span.name == "execute_tool memory_search")
    assert names.count("turn") == names.count("think") == names.count("execute_tool memory_search") == 1
    assert tool_span.parent_span_id == think.span_id
    assert tool_span.end_time_unix_nano < think.start_time_unix_nano  # of two processes


async def test_a_collector_elsewhere_is_reached_through_the_proxy(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PARLOUR_PROXY is used, as by every other connection, and the environment's proxy is not."""
    otel.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example")
    async with open_receiver() as receiver:
        where = ("127.0.0.1", int(receiver.base.rpartition(":")[2]))
        async with open_socks({"collector.example": where}, user="ann", password="p@ss") as proxy:
            through = {**ON, "PARLOUR_PROXY": proxy.url("socks5", password="p%40ss")}
            async with gateway(home=tmp_path / "home", model=scripted(), tools=(look,), environment=through) as parlour:
                await parlour.channel.ask("c1", "Hello")
                await receiver.until(lambda: "turn" in {span.name for span in receiver.spans})
                await receiver.until(lambda: "gen_ai.client.operation.duration" in receiver.metrics)
            assert set(proxy.asked) == {("collector.example", 80)}


async def test_a_receiver_that_is_down_fails_no_turn(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything is answered and stopped as usual, and one line says that exporting fails."""
    otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    otel.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    otel.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    otel.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with capture_logs() as lines:
        async with gateway(home=tmp_path / "home", model=scripted(), tools=(look,), environment=ON) as parlour:
            for n in range(5):
                assert await parlour.channel.ask("c1", f"Question {n}") == "A leaky one."
            await parlour.idle()
    assert [line["event"] for line in lines].count("otel.export_failed") == 1


async def test_a_receiver_that_never_answers_holds_up_no_stop(otel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last export has a limit of its own, whatever the exporter's timeout is."""
    otel.setattr(context, "_LAST_EXPORT", timedelta(milliseconds=50))
    otel.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    async with open_receiver() as receiver:
        receiver.is_held = True
        otel.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.base)
        async with gateway(home=tmp_path / "home", model=scripted(), tools=(look,), environment=ON) as parlour:
            assert await parlour.channel.ask("c1", "Hello") == "A leaky one."
        (closing,) = [each for each in threading.enumerate() if each.name == "last export"]
        receiver.release()
        await asyncio.to_thread(closing.join)


async def test_without_the_extra_the_start_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`otel.enabled` without the packages ends the start with the line that mends it."""
    monkeypatch.delitem(sys.modules, "gateway.web.otlp_recorder", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError, match=r"otel\.enabled needs opentelemetry.*install"):
        async with gateway(home=tmp_path / "home", environment=ON):
            pass


def test_nothing_of_it_is_imported_while_it_is_off() -> None:
    """The modules of a running gateway import no part of OpenTelemetry."""
    program = "import sys, gateway.app, gateway.commands.run; print([n for n in sys.modules if 'opentelemetry' in n])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == "[]\n"
