"""The files of deploy/monitoring with the real Prometheus: alert rules, and every query of the Grafana dashboard."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.web.metrics import METRICS, MetricKind
from tests.fakes.gateway import GatewayProcess, free_port, gateway
from tests.faults.process_pool import ForkServer

FILES = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
PROMETHEUS, PROMTOOL = (shutil.which(name) for name in ("prometheus", "promtool"))


def queries() -> Iterator[tuple[str, str]]:
    """Yield each panel's title and query, as Grafana sends it for all instances."""
    for panel in json.loads((FILES / "grafana.json").read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")


def test_every_metric_of_the_files_exists() -> None:
    """A renamed metric is renamed there as well; histograms have three names, processes ten of Prometheus' own."""
    known = {"parlour_process_resident_memory_bytes"}
    for metric in METRICS:
        ends = {MetricKind.COUNT: ("_total",), MetricKind.GAUGE: ("",), MetricKind.TIME: ("_bucket", "_sum", "_count")}
        known |= {f"parlour_{metric.name}{end}" for end in ends[metric.kind]}
    texts = [query for _, query in queries()]
    texts += [rule["expr"] for group in rules() for rule in group["rules"]]
    used = {name for text in texts for name in re.findall(r"parlour_\w+", text)}
    assert used
    assert used <= known


def test_every_rule_is_tested_and_explained() -> None:
    """Each alert fires in alerts_test.yml, and the runbook says what to do about it."""
    names = {rule["alert"] for group in rules() for rule in group["rules"]}
    tests = yaml.safe_load((FILES / "alerts_test.yml").read_text("utf-8"))["tests"]
    assert names == {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    runbook = (FILES.parent / "RUNBOOK.md").read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in runbook] == []


def rules() -> list[dict[str, Any]]:
    """Return the groups of rules."""
    groups: list[dict[str, Any]] = yaml.safe_load((FILES / "alerts.yml").read_text("utf-8"))["groups"]
    return groups


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here")
def test_rules_fire_when_they_should() -> None:
    """Prometheus' own tool plays the series of alerts_test.yml."""
    for words in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        run = subprocess.run((str(PROMTOOL), *words), cwd=FILES, capture_output=True, text=True, check=False)  # noqa: S603
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here")
async def test_prometheus_scrapes_a_gateway_and_answers_every_panel(tmp_path: Path, zygote: ForkServer) -> None:
    """Prometheus loads the rules, reads /metrics of a gateway, and has an answer for each query of the dashboard."""
    async with gateway(tmp_path / "home", zygote) as process, prometheus(tmp_path, process) as http:
        while not (await ask(http, 'parlour_channel_ready{channel="web"}')):  # noqa: ASYNC110 -- it has no event for us
            await asyncio.sleep(0.05)
        for title, query in queries():
            assert isinstance(await ask(http, query), list), title
        assert await ask(http, "sum(parlour_queued)")
        async with http.get("/api/v1/rules") as response:
            loaded = (await response.json())["data"]["groups"]
        assert [rule["lastError"] for group in loaded for rule in group["rules"] if rule.get("lastError")] == []
        assert len(loaded[0]["rules"]) == len(rules()[0]["rules"])


async def ask(http: aiohttp.ClientSession, query: str) -> list[Any]:
    """Return the result of an instant query; an error of it fails."""
    async with http.get("/api/v1/query", params={"query": query}) as response:
        answer = await response.json()
    assert answer["status"] == "success", answer
    result: list[Any] = answer["data"]["result"]
    return result


@asynccontextmanager
async def prometheus(folder: Path, process: GatewayProcess) -> AsyncIterator[aiohttp.ClientSession]:
    """Run Prometheus on the rules and one gateway; yield a client of its API."""
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(FILES / "alerts.yml")],
        "scrape_configs": [{"job_name": "parlour", "static_configs": [{"targets": [f"127.0.0.1:{process.port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    server = await asyncio.create_subprocess_exec(
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'series'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.PIPE,
    )
    assert server.stderr is not None
    try:
        async for line in server.stderr:
            if b"ready to receive web requests" in line:
                break
        else:
            raise AssertionError("Prometheus ended before it was ready")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            yield http
    finally:
        server.kill()
        await server.wait()
