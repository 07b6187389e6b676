"""`parlour doctor`: the list of all checks, those of a gateway that runs, and those that need the agent."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from gateway.control import connect
from gateway.errors import ParlourError, SettingsError, ToolFailed, UserError
from gateway.health import gateway_checks, home_checks, network_checks
from gateway.health.checks import CheckContext, HealthCheck, Status
from gateway.home import Home, in_use, is_held
from gateway.journal_file import lost_journal
from gateway.logs import configure_logs
from gateway.ports.setup import Finding, FindingLevel, fail, ok, warn
from gateway.settings import Settings, check_settings, secret_values
from gateway.settings.setting_names import apply_rename, normalize_names
from gateway.settings.sources import read_environment
from gateway.text.message_text import strip_control_characters

if TYPE_CHECKING:
    from gateway.store.database import Database

_RECENTLY = timedelta(days=1)  # an answer in this time shows that a model works


def run_doctor(*, as_json: bool, is_offline: bool, asks_model: bool) -> int:
    """Print every finding, the failures first; return 2 when there is one, else 0."""
    # The libraries log their calls, which are no findings.
    settings = check_settings(os.environ).settings
    configure_logs(level="error", form="auto", secrets=secret_values(settings))

    async def gather() -> list[Finding]:
        return [each async for each in collect_findings(os.environ, is_offline=is_offline, asks_model=asks_model)]

    findings = asyncio.run(gather())
    counts = Counter(each.level for each in findings)
    worst = [FindingLevel.FAIL, FindingLevel.WARN, FindingLevel.OK]
    for finding in sorted(findings, key=lambda each: worst.index(each.level)):
        line = replace(finding, text=strip_control_characters(finding.text)).to_line()
        typer.echo(json.dumps(line) if as_json else f"{finding.level:4}  {finding.name}: {line['text']}")
    if not as_json:
        typer.echo(f"{_count(counts[FindingLevel.FAIL], 'error')}, {_count(counts[FindingLevel.WARN], 'warning')}")
    return 2 if counts[FindingLevel.FAIL] else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


async def collect_findings(
    environment: Mapping[str, str], *, is_offline: bool, asks_model: bool
) -> AsyncIterator[Finding]:
    """Yield the findings of every check: those of this machine in order, then those that call others, at once."""
    context = CheckContext(
        report=await asyncio.to_thread(check_settings, environment), environment=environment, asks_model=asks_model
    )
    if not is_offline:
        database = await network_checks.DATABASE.run(context)
        for finding in database:
            yield finding
        if database and not any(each.level is FindingLevel.FAIL for each in database):
            context = replace(context, url=context.settings.store.address)
    try:
        context = replace(context, status=await fetch_status(context.home))
    except UserError as error:
        context = replace(context, error=str(error))
    groups = [[each] for each in CHECKS if not each.calls_others]
    groups += [] if is_offline else [[each for each in CHECKS if each.calls_others]]
    for group in groups:
        for findings in await asyncio.gather(*(check.run(context) for check in group)):
            for finding in findings:
                yield finding


async def fetch_status(home: Home) -> Status:
    """Return the status of the gateway that runs on *home*; empty if none runs. Raises UserError if it is starting."""
    async with connect(home) as client:
        return {} if client is None else await anext(client.call("status", {}))


def check_holder(context: CheckContext) -> Iterator[Finding]:
    """Yield whether the gateway that holds the home has other settings than these."""
    if not is_held(context.home):
        return
    theirs = urlsplit(str(context.status.get("page", ""))).port
    ours = _chosen_port(context.settings, context.environment) if context.report.settings else 0
    where = f"its page is on port {theirs}"
    if ours and theirs and theirs != ours:
        yield fail(
            f"another gateway uses this home: {in_use(context.home)}; {where}, these settings say {ours}", "lock"
        )
    else:
        yield ok(f"a gateway is running on this home{f'; {where}' if theirs else ''}", "lock")
    if context.error:
        yield warn(context.error, "gateway")


def _chosen_port(settings: Settings, environment: Mapping[str, str]) -> int:
    """Return the page's port if *environment* names it, else 0: the gateway's own environment may name another one."""
    names = {apply_rename(normalize_names(leaf))[0].path for leaf in read_environment(environment)}
    is_chosen = not names.isdisjoint({("web", "port"), ("web", "published_port")})
    return (settings.web.published_port or settings.web.port) if is_chosen else 0


def check_status(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings in the status; a trial of the models finds out again what they lack."""
    if "findings" in context.status:
        found = [Finding.from_line(each) for each in context.status["findings"]]
    else:  # no gateway runs, or one of an earlier release
        stored = context.status or gateway_checks.read_stored_status(context.home, context.url)
        found = [*gateway_checks.status_findings(stored)]
    return (each for each in found if not (context.asks_model and each.id == "model.lacks"))


def check_reader(_: CheckContext) -> Iterator[Finding]:
    """Yield whether the processes that read untrusted files and pages, or calculate, are confined."""
    from agent.attachments.process_confinement import FILES_ARE_READ, probe_confinement

    try:
        tier = probe_confinement()
    except OSError as error:
        yield fail(f"files and web pages cannot be read: {error}", "reader", "confined")
        return
    text = f"the kernel confines the processes that read files and web pages or calculate ({tier})"
    if tier == "none":
        text = (
            "this kernel does not confine the processes that read files and web pages or calculate; use Linux on x86-64"
            " or ARM64. Until then only memory, time, Python's audit hook (reading) and the interpreter itself"
            " (calculating) limit them"
        )
    elif FILES_ARE_READ in tier:
        text += "; use Linux 5.13 or newer with Landlock, and let the service manager or the container allow its calls"
    yield (warn if tier == "none" or FILES_ARE_READ in tier else ok)(text, "reader", "confined")


def check_prices(context: CheckContext) -> Iterator[Finding]:
    """Yield models without a known price, where caps in dollars are set."""
    caps = [context.settings.caps, *(each.caps for each in context.settings.chats.values())]
    names = ("usd_per_day", "person_usd_per_day", "chat_usd_per_day")
    if not any(getattr(each, name, None) for each in caps for name in names):
        return
    from gateway.app.models import unpriced_models

    if unpriced := ", ".join(unpriced_models(context.settings)):
        line = (
            f"the price of {unpriced} is unknown, so caps in dollars do not hold for it; set usd_per_million_input and"
            " usd_per_million_output of the model under llm.models in parlour.yaml (0 if it costs nothing)"
        )
        yield warn(line, "caps", "prices")


def check_fallbacks(context: CheckContext) -> Iterator[Finding]:
    """Yield fallbacks that are neither in `llm.models` nor known to be some provider's model."""
    if not context.settings.llm.fallbacks:
        return
    from gateway.app.models import unknown_fallbacks

    if unknown := ", ".join(unknown_fallbacks(context.settings.llm)):
        line = (
            f"PARLOUR_LLM__FALLBACKS: {unknown} is no known model; write it with its provider, such as openai/<name>,"
            " or add it to llm.models"
        )
        yield warn(line, "model", "fallbacks")


def check_transcripts(context: CheckContext) -> Iterator[Finding]:
    """Compare the transcripts with the store, as a start does."""
    if not context.home.path.is_dir() or lost_journal(context.home.journal):
        return  # the latter says more
    from gateway.app.lost_turns import describe_loss

    try:
        lost = describe_loss(context.home, context.url)
    except ParlourError as error:  # the database has gone since it was asked
        lost = str(error)
    if lost:
        yield fail(lost, "journal", "transcripts")


async def check_search(context: CheckContext) -> list[Finding]:
    """Search once with the configured engine."""
    name = context.settings.tools.web.search
    if not name:
        return []
    from agent.web.web_tools import WebPages
    from gateway.app.chat_settings import open_search_engine

    try:
        engine = open_search_engine(context.settings, WebPages(proxy=context.settings.proxy_address))
        hits = await engine.search("weather", count=1, language="", since="")
    except SettingsError as error:
        return [fail(f"{name}: {error}", "search", "answers")]
    except ToolFailed as error:
        line = f"{name}: {error}; check PARLOUR_TOOLS__WEB__SEARCH_URL, its key and the engine itself"
        return [fail(line, "search", "answers")]
    if not hits:
        return [warn(f"{name} answers without a result; check the engines it uses", "search", "answers")]
    return [ok(f"{name} answers with results", "search", "answers")]


async def check_model(context: CheckContext) -> list[Finding]:
    """Ask the model and its fallbacks, which costs a few tokens, but not what answered the gateway within a day."""
    llm = context.settings.llm
    if not llm.asking().model:
        return []
    found: list[Finding] = []
    tried: list[tuple[str, Any]] = []
    # The models of llm.models only with --model.
    for name in dict.fromkeys(["", *llm.fallbacks, *(llm.models if context.asks_model else ())]):
        model, now = llm.asking(name), datetime.now(UTC)
        at = None if context.asks_model else await asyncio.to_thread(_last_answer, context, model.model)
        if at is None or now - at >= _RECENTLY:
            tried.append((name, model))
            continue
        minutes = max(0, int((now - at).total_seconds() // 60))
        line = (
            f"{model.model} answered {minutes} minutes ago; `parlour doctor --model` calls it now (costs a few tokens)"
        )
        found.append(ok(line, "model", "answers"))
    if not tried:
        return found
    from gateway.app.model_trial import hand_over_trials, try_model

    trials = await asyncio.gather(*(try_model(model, proxy=context.settings.proxy_address) for _, model in tried))
    await hand_over_trials(context.home, trials)
    for (name, _), trial in zip(tried, trials, strict=True):
        text = f"the fallback {name}: {trial.finding.text}" if name in llm.fallbacks else trial.finding.text
        about = "fallback" if name in llm.fallbacks else "answers"
        found.append(replace(trial.finding, text=text, name="model", about=about))
    return found


def _last_answer(context: CheckContext, model: str) -> datetime | None:
    """Return when *model* last answered the gateway that runs on the home; None when it did not, or none runs. Blocks.

    An answer to an earlier run proves nothing: the key may have changed since, or be missing in a restored home.
    """
    if "since" not in context.status:
        return None

    def read(database: Database) -> int | None:
        query = "SELECT max(at) FROM usage WHERE model = ? AND tokens_out > 0"
        (at,) = database.execute(query, (model,)).fetchone()
        return int(at) if at is not None else None

    microseconds = context.read_store(read)
    at = datetime.fromtimestamp(microseconds / 1_000_000, UTC) if microseconds is not None else None
    return at if at is not None and at >= datetime.fromisoformat(context.status["since"]) else None


# Those of this machine are made in this order, then all that call others at once.
CHECKS = (
    *home_checks.CHECKS,
    HealthCheck("lock", check_holder, needs_settings=False),
    HealthCheck("gateway", check_status, needs_settings=False),
    *gateway_checks.CHECKS,
    HealthCheck("journal", check_transcripts, seconds=600, needs_settings=False),
    HealthCheck("caps", check_prices),
    HealthCheck("model", check_fallbacks),
    HealthCheck("reader", check_reader, needs_settings=False),
    *network_checks.CHECKS,
    HealthCheck("search", check_search, seconds=60, calls_others=True),
    HealthCheck("model", check_model, seconds=120, calls_others=True),
)
