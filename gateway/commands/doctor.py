"""Commands that need no gateway: they look at the home, or put one back."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime

import typer

from gateway.doctor import (
    LATELY,
    DoctorFinding,
    FindingLevel,
    check_addresses,
    check_incidents,
    check_machine,
    check_monitoring,
    check_objects,
    check_platforms,
    check_proxy,
    check_server,
    from_platform,
    last_answer,
)
from gateway.errors import ParlourError, SettingsError, ToolFailed
from gateway.home import Home
from gateway.journal_file import lost_journal
from gateway.logs import configure_logs
from gateway.net.platform_time import clock_ahead, clock_line, time_servers
from gateway.ports.entry_points import HOW_TO_INSTALL, with_operator_commands
from gateway.settings import Settings, check_settings, secret_values
from gateway.settings.llm import LlmSettings
from gateway.settings.resolve import apply_rename, normalize_names
from gateway.settings.settings_model import ObjectStoreSettings
from gateway.settings.sources import read_environment

_BELIEVED = "model.lacks"  # the finding of what the gateway has learned


def run_doctor(*, as_json: bool, is_offline: bool, asks_model: bool) -> int:
    """Print every finding, the failures first; return 2 when there is one, else 0."""
    # The libraries log their calls, which are no findings.
    settings = check_settings(os.environ).settings
    configure_logs(level="error", form="auto", secrets=secret_values(settings))

    async def gather() -> list[DoctorFinding]:
        return [each async for each in collect_findings(os.environ, is_offline=is_offline, asks_model=asks_model)]

    findings = asyncio.run(gather())
    counts = Counter(each.level for each in findings)
    worst = [FindingLevel.FAIL, FindingLevel.WARN, FindingLevel.OK]
    for finding in sorted(findings, key=lambda each: worst.index(each.level)):
        text = with_operator_commands(finding.text)
        typer.echo(_as_json(finding, text) if as_json else f"{finding.level:4}  {finding.name}: {text}")
    if not as_json:
        typer.echo(f"{_count(counts[FindingLevel.FAIL], 'error')}, {_count(counts[FindingLevel.WARN], 'warning')}")
    return 2 if counts[FindingLevel.FAIL] else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _as_json(finding: DoctorFinding, text: str) -> str:
    return json.dumps({"id": finding.id, "level": finding.level, "name": finding.name, "text": text})


async def collect_findings(
    environment: Mapping[str, str], *, is_offline: bool, asks_model: bool
) -> AsyncIterator[DoctorFinding]:
    """Yield everything the doctor sees: this machine, what went wrong lately, then what others have to say."""
    report = check_settings(environment)
    settings = report.settings
    url = settings.store.address if settings and not is_offline else ""
    database = await asyncio.to_thread(_database, url) if url else []
    url = "" if any(each.level is FindingLevel.FAIL for each in database) else url
    for finding in (*database, *check_machine(report, environment, url=url)):
        yield finding
    for finding in (
        *await asyncio.to_thread(_transcripts, Home(report.home), url),
        *await asyncio.to_thread(_prices, settings),
        *await asyncio.to_thread(_fallbacks, settings),
        await asyncio.to_thread(_reader),
    ):
        yield finding
    port = _chosen_port(settings, environment) if settings else 0
    incidents = [each async for each in check_incidents(Home(report.home), port=port, url=url)]
    # A trial finds out again what the gateway believes that a model lacks.
    for finding in (each for each in incidents if not asks_model or each.id != _BELIEVED):
        yield finding
    if settings is None or is_offline:
        return
    if settings.proxy:
        yield await check_proxy(settings.proxy_address)
    if settings.store.objects.url:
        yield await _objects(settings.store.objects, settings.proxy_address)
    servers = time_servers(settings.channels.values(), settings.llm.api_base)
    ahead = await clock_ahead(servers, datetime.now(UTC), proxy=settings.proxy_address)
    if ahead:
        yield DoctorFinding(FindingLevel.FAIL, "clock", clock_line(ahead))
    model = asyncio.create_task(_model(settings, asks_model=asks_model), name="ask the model")
    try:
        async for finding in check_platforms(settings, environment):
            yield finding
        watchers = await check_monitoring(settings, environment)
        for finding in (*watchers, *await check_addresses(settings), *await _search(settings), *await model):
            yield finding
    finally:
        model.cancel()


def _chosen_port(settings: Settings, environment: Mapping[str, str]) -> int:
    """Return the page's port if *environment* names it, else 0: the gateway's own environment may name another one."""
    names = {apply_rename(normalize_names(leaf))[0].path for leaf in read_environment(environment)}
    is_chosen = not names.isdisjoint({("web", "port"), ("web", "published_port")})
    return (settings.web.published_port or settings.web.port) if is_chosen else 0


def _reader() -> DoctorFinding:
    """Return a warning if the processes that read untrusted files and pages, or calculate, are not confined. Blocks."""
    from agent.attachments.process_confinement import FILES_ARE_READ, probe_confinement

    try:
        tier = probe_confinement()
    except OSError as error:
        return DoctorFinding(FindingLevel.FAIL, "reader", f"files and web pages cannot be read: {error}", "confined")
    if tier == "none":
        text = (
            "this kernel does not confine the processes that read files and web pages or calculate; use Linux on x86-64"
            " or ARM64. Until then only memory, time, Python's audit hook (reading) and the interpreter itself"
            " (calculating) limit them"
        )
        return DoctorFinding(FindingLevel.WARN, "reader", text, "confined")
    text = f"the kernel confines the processes that read files and web pages or calculate ({tier})"
    if FILES_ARE_READ in tier:
        text += "; use Linux 5.13 or newer with Landlock, and let the service manager or the container allow its calls"
        return DoctorFinding(FindingLevel.WARN, "reader", text, "confined")
    return DoctorFinding(FindingLevel.OK, "reader", text, "confined")


def _prices(settings: Settings | None) -> list[DoctorFinding]:
    """Return a warning if caps in dollars are set and a model has no known price. Blocks."""
    if settings is None:
        return []
    caps = [settings.caps, *(each.caps for each in settings.chats.values())]
    names = ("usd_per_day", "person_usd_per_day", "chat_usd_per_day")
    if not any(getattr(each, name, None) for each in caps for name in names):
        return []
    from gateway.app.models import unpriced_models

    unpriced = ", ".join(unpriced_models(settings))
    line = (
        f"the price of {unpriced} is unknown, so caps in dollars do not hold for it; set usd_per_million_input and"
        " usd_per_million_output of the model under llm.models in parlour.yaml (0 if it costs nothing)"
    )
    return [DoctorFinding(FindingLevel.WARN, "caps", line, "prices")] if unpriced else []


def _fallbacks(settings: Settings | None) -> list[DoctorFinding]:
    """Return a warning for fallbacks that are neither in `llm.models` nor known to be somebody's model. Blocks."""
    if settings is None or not settings.llm.fallbacks:
        return []
    from gateway.app.models import unknown_fallbacks

    unknown = ", ".join(unknown_fallbacks(settings.llm))
    line = (
        f"PARLOUR_LLM__FALLBACKS: {unknown} is no known model; write it with its provider, such as openai/<name>, or"
        " add it to llm.models"
    )
    return [DoctorFinding(FindingLevel.WARN, "model", line, "fallbacks")] if unknown else []


def _transcripts(home: Home, url: str) -> list[DoctorFinding]:
    """Compare the transcripts with the store, as a start does. Blocks."""
    if not home.path.is_dir() or lost_journal(home.journal):
        return []  # the latter says more
    from gateway.app.lost_turns import describe_loss

    try:
        lost = describe_loss(home, url)
    except ParlourError as error:  # the database has gone since it was asked
        lost = str(error)
    return [DoctorFinding(FindingLevel.FAIL, "journal", lost, "transcripts")] if lost else []


def _database(url: str) -> list[DoctorFinding]:
    """Ask the database of `store.url` whether it can be used, and by several gateways. Blocks."""
    try:
        from gateway.store.postgres.schema import describe
        from gateway.store.postgres.server_facts import read_server_facts

        usable = DoctorFinding(FindingLevel.OK, "store", describe(url))
        facts = read_server_facts(url)
    except ModuleNotFoundError as missing:
        return [DoctorFinding(FindingLevel.FAIL, "store", f"store.url needs {missing.name}: {HOW_TO_INSTALL}")]
    except ParlourError as error:
        return [DoctorFinding(FindingLevel.FAIL, "store", str(error))]
    return [usable, *check_server(facts.sessions, facts.session_limit, facts.clock_ahead, facts.worker_versions)]


async def _objects(settings: ObjectStoreSettings, proxy: str) -> DoctorFinding:
    """Try the object store for large attachments."""
    from gateway.store.objects import open_objects

    try:
        objects = open_objects(settings, proxy)
    except ParlourError as error:
        return DoctorFinding(FindingLevel.FAIL, "store", str(error), "objects")
    return await check_objects(objects, settings.url or "")


async def _search(settings: Settings) -> list[DoctorFinding]:
    """Search once with the configured engine."""
    name = settings.tools.web.search
    if not name:
        return []
    from agent.web.web_pages import WebPages
    from gateway.app.chat_settings import open_search_engine

    level = FindingLevel.FAIL
    try:
        engine = open_search_engine(settings, WebPages(proxy=settings.proxy_address))
        hits = await engine.search("weather", count=1, language="", since="")
        level = FindingLevel.OK if hits else FindingLevel.WARN
        text = f"{name} answers with results" if hits else f"{name} answers without a result; check the engines it uses"
    except SettingsError as error:
        text = f"{name}: {error}"
    except ToolFailed as error:
        text = f"{name}: {error}; check PARLOUR_TOOLS__WEB__SEARCH_URL, its key and the engine itself"
    return [DoctorFinding(level, "search", text, "answers")]


async def _model(settings: Settings, *, asks_model: bool) -> list[DoctorFinding]:
    """Ask the model and its fallbacks, which costs a few tokens, but not what answered the gateway within a day."""
    if not settings.llm.asking().model:
        return []
    home = Home(settings.home)
    tried: list[tuple[str, LlmSettings]] = []
    found: list[DoctorFinding] = []
    # The models of llm.models only with --model.
    for name in dict.fromkeys(["", *settings.llm.fallbacks, *(settings.llm.models if asks_model else ())]):
        llm = settings.llm.asking(name)
        answered_at = None if asks_model else await last_answer(home, llm.model, settings.store.address)
        if answered_at is None or datetime.now(UTC) - answered_at >= LATELY:
            tried.append((name, llm))
            continue
        minutes = max(0, int((datetime.now(UTC) - answered_at).total_seconds() // 60))
        line = f"{llm.model} answered {minutes} minutes ago; `parlour doctor --model` calls it now (costs a few tokens)"
        found.append(DoctorFinding(FindingLevel.OK, "model", line, "answers"))
    if not tried:
        return found
    from gateway.app.model_trial import hand_over_trials, try_model

    trials = await asyncio.gather(*(try_model(llm, proxy=settings.proxy_address) for _, llm in tried))
    await hand_over_trials(home, trials)
    for (name, _), trial in zip(tried, trials, strict=True):
        result = from_platform("model", trial.finding)
        is_fallback = name in settings.llm.fallbacks
        text = f"the fallback {name}: {result.text}" if is_fallback else result.text
        found.append(DoctorFinding(result.level, "model", text, "fallback" if is_fallback else "answers"))
    return found
