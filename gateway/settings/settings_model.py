"""Every knob: its name, its unit, its default. Nothing here reads anything."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.events import SessionKey
from gateway.installation import HOW_TO_INSTALL
from gateway.settings.channel_blocks import ChannelSettings
from gateway.settings.chat_settings import ChatSettings, ProfileSettings, parse_profile_name, parse_selector
from gateway.settings.setting_types import (
    Count,
    Dollars,
    FrozenModel,
    Language,
    LoginKey,
    MaybeEffort,
    MaybeObjectAddress,
    MaybeSecret,
    MaybeWebAddress,
    Merge,
    Networks,
    Proxy,
    Seconds,
    Secret,
    SecretWebAddress,
    StoreAddress,
    TextList,
    TimeZone,
    split_list,
    valid_zone,
)

OFFLINE = "offline"  # what answers when no model is set
MOST_ALIAS = 57  # characters: `/model <alias>` is what a button stands for


def _alias(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._/:@+-]*", name, re.ASCII | re.IGNORECASE):
        raise ValueError(f"{name!r} is not a valid model name; use only a-z, 0-9 and . _ - / : @ +")
    if name.lower() == "default":
        raise ValueError(f"{name!r} always means llm.model; choose another name")
    if len(name) > MOST_ALIAS:
        raise ValueError(f"{name!r} is too long for a button; give it a shorter name: {{short: {{model: …}}}}")
    return name


class ModelSettings(FrozenModel):
    """A model that users may choose. Without an address and key it uses those of `llm` (same provider)."""

    model: Annotated[str, Field(min_length=1)]  # as litellm names it
    api_base: MaybeWebAddress = None
    api_key: Secret | None = None
    context_window: Annotated[int, Field(ge=1_000)] | None = None  # tokens; None = what litellm knows
    vision: Literal["auto", "on", "off"] = "auto"
    effort: MaybeEffort = None  # None = that of `llm`
    usd_per_million_input: Dollars | None = None  # None = what litellm's table says
    usd_per_million_output: Dollars | None = None

    @property
    def prices(self) -> tuple[float, float] | None:
        """The prices of a million tokens in and out, or None if the operator gives none."""
        if self.usd_per_million_input is None or self.usd_per_million_output is None:
            return None
        return self.usd_per_million_input, self.usd_per_million_output

    @model_validator(mode="after")
    def _require_both_prices(self) -> ModelSettings:
        if (self.usd_per_million_input is None) != (self.usd_per_million_output is None):
            raise ValueError("set both usd_per_million_input and usd_per_million_output, or neither")
        return self


class LlmSettings(FrozenModel):
    """The model that answers; without one, `offline` does."""

    model: str = ""  # as litellm names it, e.g. openai/gpt-5, or a name of `models`; empty = offline
    models: Mapping[Annotated[str, AfterValidator(_alias)], ModelSettings] = Field(default={})  # to choose from
    api_base: MaybeWebAddress = None
    api_key: Secret | None = None
    fallbacks: TextList = ()  # models asked in turn when the first fails
    context_window: Annotated[int, Field(ge=1_000)] | None = None  # tokens; None = what litellm knows
    timeout_seconds: Seconds = 120
    stream_silence_seconds: Seconds = 30
    attempts: Annotated[int, Field(ge=1, le=10)] = 2
    vision: Literal["auto", "on", "off"] = "auto"  # whether it looks at pictures; auto = what litellm knows
    effort: MaybeEffort = None  # how long it thinks before an answer; None = as the provider has it
    client: Literal["auto", "litellm"] = "auto"  # auto = without litellm where the server speaks OpenAI's protocol
    transcription_model: str = ""  # as litellm names it; empty = voice messages are not listened to

    def asking(self, name: str = "") -> LlmSettings:
        """Return these settings with *name*, by default the usual model, as the one model there is."""
        entry = self.entry(name or self.model)
        return self.model_copy(
            update={
                "model": entry.model if name or self.model else "",
                "models": {},
                "api_base": entry.api_base,
                "api_key": entry.api_key,
                "context_window": entry.context_window,
                "vision": entry.vision,
                "effort": entry.effort,
            }
        )

    def entry(self, name: str) -> ModelSettings:
        """Return the model that *name* means (one of `models`, or as litellm names it) and how it is asked.

        Address and key of the usual model are for its own provider's models alone.
        """
        found = self.models.get(name) or ModelSettings(model=name or OFFLINE)
        found = found.model_copy(update={"effort": found.effort or self.effort})
        if name == self.model or name not in self.models:
            found = found.model_copy(
                update={
                    "context_window": found.context_window or self.context_window,
                    "vision": self.vision if found.vision == "auto" else found.vision,
                }
            )
        if found.api_base or found.api_key:
            return found
        usual = self.models.get(self.model) or ModelSettings(model=self.model or OFFLINE)
        if provider_of(found.model) != provider_of(usual.model):
            return found
        if not usual.api_base and not usual.api_key:
            return found.model_copy(update={"api_base": self.api_base, "api_key": self.api_key})
        return found.model_copy(update={"api_base": usual.api_base, "api_key": usual.api_key})


def provider_of(model: str) -> str:
    """Return the provider in a model's name; "" where litellm has to know."""
    return model.partition("/")[0] if "/" in model else ""


def _owner(text: str) -> str:
    hint = "write channel:user_id, such as telegram:42"
    try:
        key = SessionKey.parse(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an owner; {hint}") from None
    if not key.chat.isascii() or not key.chat.isprintable() or any(sign in key.chat for sign in " *,"):
        raise ValueError(f"{text!r} is not an owner; {hint}, without spaces, and with the id: anyone can take a name")
    return text


def machine_zone() -> str:
    """Return the machine's IANA time zone, or UTC where it names none we know."""
    local = Path("/etc/localtime")
    names = [os.environ.get("TZ", "").removeprefix(":")]
    if local.is_symlink():
        names.append(str(local.resolve()).rpartition("/zoneinfo/")[2])
    for name in names:
        if name and not name.startswith("/"):
            try:
                return valid_zone(name)
            except ValueError:
                continue
    return "UTC"


def _cron(line: str) -> str:
    try:
        next(CronSim(line, datetime(2026, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration):
        raise ValueError(
            f"{line!r} is not a cron schedule that ever runs; write five fields, such as 0 3 * * *"
        ) from None
    return line


class FileSettings(FrozenModel):
    """Files that people send and are sent."""

    max_mb: Annotated[int, Field(ge=1, le=100)] = 20  # megabytes of one file
    text_chars: Annotated[int, Field(ge=100, le=1_000_000)] = 20_000  # of one document that the model reads
    workspace_mb: Annotated[int, Field(ge=1, le=100_000)] = 200  # megabytes of a scope's files, deleted ones included


class AgentSettings(FrozenModel):
    """How turns run."""

    workers: Annotated[int, Field(ge=1, le=1_024)] = 64  # turns at once, all chats together
    overlap: Literal["queue", "steer"] = "queue"  # what becomes of a message that comes during a turn
    merge: Merge = "burst"
    queued_per_chat: Count = 300
    queued: Count = 10_000
    max_tool_calls: Annotated[int, Field(ge=1, le=1_000)] = 25
    max_tool_result_chars: Annotated[int, Field(ge=500, le=1_000_000)] = 16_000
    shutdown_grace_seconds: Annotated[float, Field(ge=0, le=600)] = 25
    session_cache: Count = 500  # sessions kept in memory


class DreamSettings(FrozenModel):
    """The slow layer of memory [003]."""

    enabled: bool = True
    interval_h: Annotated[float, Field(gt=0, le=8_784)] = 2
    model_override: str | None = None
    max_batch_size: Count = 20
    max_iterations: Annotated[int, Field(ge=1, le=1_000)] = 10
    cron: Annotated[str, AfterValidator(_cron)] | None = None  # older configurations; wins over interval_h


class AgentDefaultSettings(FrozenModel):
    """Settings of all agents: `agents.defaults`."""

    memory_window: Annotated[int, Field(ge=0, le=100_000)] = 100  # messages; 0 = no consolidation
    dream: DreamSettings = DreamSettings()


class AgentGroupSettings(FrozenModel):
    """Agent settings by name; only `defaults` exists today."""

    defaults: AgentDefaultSettings = AgentDefaultSettings()


class VectorMemorySettings(FrozenModel):
    """Search [002]."""

    enabled: bool = True
    embedding_model: str = ""  # as litellm names it; empty = text search alone
    embedding_api_base: MaybeWebAddress = None  # None, and the provider of `llm`: its address and key
    embedding_api_key: MaybeSecret = None
    chunk_tokens: Annotated[int, Field(ge=32, le=8_192)] = 512
    chunk_overlap: Annotated[int, Field(ge=0, le=4_096)] = 64
    sync_interval_seconds: Seconds = 60
    vector_weight: Annotated[float, Field(ge=0, le=1)] = 0.7
    text_weight: Annotated[float, Field(ge=0, le=1)] = 0.3
    profile: Literal["parlour", "seed"] = "parlour"
    memory_half_life_days: Annotated[float, Field(ge=0)] = 30  # profile seed; 0 = no decay
    docs_half_life_days: Annotated[float, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _overlap_fits(self) -> VectorMemorySettings:
        if self.chunk_overlap >= self.chunk_tokens:
            raise ValueError("chunk_overlap must be smaller than chunk_tokens")
        return self


class SessionMemorySettings(FrozenModel):
    """The note written at /new [002]."""

    enabled: bool = True
    max_messages: Count = 20
    min_user_messages: Annotated[int, Field(ge=0, le=1_000)] = 3


class MemoryFlushSettings(FrozenModel):
    """Settings of the memory flush before a compaction."""

    enabled: bool = True
    threshold_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 4_000


class CodeSettings(FrozenModel):
    """Code that the model writes."""

    compute: bool = True  # where the extra `code` is installed


class WebToolSettings(FrozenModel):
    """The tools `web_fetch` and `web_search`."""

    fetch: bool = True
    search: Annotated[str, Field(max_length=64)] = (
        ""  # searxng, brave, tavily, ddgs, or an installed plugin's; "" = none
    )
    search_url: MaybeWebAddress = None  # of SearXNG, or of another engine's API
    search_key: MaybeSecret = None
    ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65_535)], ...], BeforeValidator(split_list)] = ()


class TaskSettings(FrozenModel):
    """Background tasks; the limits from `minutes` on are those of one task."""

    enabled: bool = False
    at_once: Annotated[int, Field(ge=1, le=32)] = 4  # whose steps one gateway runs side by side
    person_tasks: Annotated[int, Field(ge=1, le=20)] = 2  # that a person has at once
    minutes: Annotated[int, Field(ge=1, le=240)] = 20
    model_calls: Annotated[int, Field(ge=1, le=100)] = 20
    tokens: Annotated[int, Field(ge=5_000, le=10_000_000)] = 100_000
    usd: Dollars | None = None  # None = only the caps in money


class MediaModelSettings(FrozenModel):
    """A model for sound or pictures. Without an address and key it uses those of `llm` (same provider)."""

    model: str = ""  # as litellm names it, or a name of `llm.models`; empty = none
    api_base: MaybeWebAddress = None
    api_key: MaybeSecret = None

    def entry(self, llm: LlmSettings) -> ModelSettings:
        """Return how the model is asked; only where one is set."""
        if self.api_base or self.api_key:
            return ModelSettings(model=llm.entry(self.model).model, api_base=self.api_base, api_key=self.api_key)
        return llm.entry(self.model)


class SpeechSettings(MediaModelSettings):
    """Voice answers to voice messages, beside their text."""

    voice: Annotated[str, Field(min_length=1, max_length=100)] = "alloy"  # as the provider names it
    max_characters: Annotated[int, Field(ge=50, le=10_000)] = 1_500  # of an answer; a longer one is text alone
    max_seconds: Annotated[int, Field(ge=5, le=1_200)] = 180  # a longer sound is not sent
    who: Literal["member", "admin", "owner"] = "member"  # the least role
    usd_per_million_characters: Dollars | None = None  # None = what litellm's table says


class DrawSettings(MediaModelSettings):
    """The tool `draw`."""

    size: Annotated[str, Field(pattern=r"^([1-9]\d{1,4}x[1-9]\d{1,4})?$")] = "1024x1024"  # empty = the model's own
    quality: Annotated[str, Field(max_length=20)] = ""  # as the provider names it; empty = its own
    usd_per_picture: Dollars | None = None  # None = the most that litellm's table says


class ToolRightsSettings(FrozenModel):
    """Least role, chats and approval of a tool or a kind of tools; None = as the tool says."""

    who: Literal["member", "admin", "owner"] | None = None  # the least role
    where: (
        Annotated[
            tuple[Literal["direct", "shared"], ...], BeforeValidator(split_list), Field(min_length=1, max_length=2)
        ]
        | None
    ) = None
    ask: Literal["tainted", "first", "always"] | None = None  # stricter than the tool's own, never weaker


class ToolSettings(FrozenModel):
    """The blocks of [002], and which tools are on."""

    vector_memory: VectorMemorySettings = VectorMemorySettings()
    session_memory: SessionMemorySettings = SessionMemorySettings()
    memory_flush: MemoryFlushSettings = MemoryFlushSettings()
    code: CodeSettings = CodeSettings()
    web: WebToolSettings = WebToolSettings()
    files: bool = True  # the tools that list, read, write and delete files of the workspace
    reminders: bool = True  # the tools that set reminders, and sending them
    skills: Annotated[str, Field(min_length=1, max_length=4_096)] = "skills"  # their folder, relative to the home
    tasks: TaskSettings = TaskSettings()
    draw: DrawSettings = DrawSettings()
    rights: Mapping[str, ToolRightsSettings] = Field(default={})  # by kind or name of tools
    login_key: LoginKey | None = None  # seals people's logins at services; `parlour mcp login` makes it


class MemorySettings(FrozenModel):
    """Isolation, retention and limits of memory."""

    isolation: Literal["strict", "shared"] = "strict"
    new_waits: bool = False  # /new answers only after the archive is summarised [000]
    model: str | None = None  # of summaries, notes and flushes; None = llm.model
    retention_days: Annotated[int, Field(ge=0, le=36_500)] = 0  # 0 = kept until it is erased on request
    max_chars: Annotated[int, Field(ge=2_000, le=400_000)] = 32_000  # of MEMORY.md; older lines move to an archive
    git: bool = True  # every change of the documents is a commit in memory/.git, too
    auto_recall: bool = False  # looks up what may help before the model is asked; costs tokens in every turn


class WebServerSettings(FrozenModel):
    """The web server: page, health and metrics."""

    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8787  # 0 = any free one
    published_port: Annotated[int, Field(ge=1, le=65_535)] | None = None  # where a container's engine shows it
    login: Literal["auto", "always"] = "auto"
    public_url: MaybeWebAddress = None  # as people type it, when a proxy stands in front
    trusted_proxies: Networks = ()
    metrics_token: MaybeSecret = None  # who scrapes /metrics from another machine
    push_key: LoginKey | None = None  # of notifications; made at the first, where one gateway has the store


class ToolCapSettings(FrozenModel):
    """Tool calls per person and day, by kind of tool; 0 = no cap."""

    web: Annotated[int, Field(ge=0)] = 200
    act: Annotated[int, Field(ge=0)] = 50
    draw: Annotated[int, Field(ge=0)] = 20


class CapSettings(FrozenModel):
    """0 = none; unset = 20 turns and a daily token cap for those who are not allowed by their own id."""

    person_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    chat_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    person_tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    chat_tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    person_usd_per_day: Dollars | None = None
    chat_usd_per_day: Dollars | None = None
    usd_per_day: Dollars | None = None
    background_tokens_per_day: Annotated[int, Field(ge=0)] = 2_000_000  # summaries, notes, Dream, embeddings; 0 = none
    tools: ToolCapSettings = ToolCapSettings()


class ObjectStoreSettings(FrozenModel):
    """The store of large attachments, beside a database."""

    url: MaybeObjectAddress = None  # file:///directory or s3://bucket/prefix; None = in the database
    endpoint: MaybeWebAddress = None  # of a server that speaks S3; None = Amazon's
    region: str = "us-east-1"
    access_key: MaybeSecret = None
    secret_key: MaybeSecret = None

    @model_validator(mode="after")
    def _require_keys(self) -> ObjectStoreSettings:
        if self.url and self.url.startswith("s3:") and not (self.access_key and self.secret_key):
            raise ValueError("a bucket needs PARLOUR_STORE__OBJECTS__ACCESS_KEY and PARLOUR_STORE__OBJECTS__SECRET_KEY")
        return self


class StoreSettings(FrozenModel):
    """Which engine holds the journal."""

    url: StoreAddress | None = None  # None or empty = embedded; may hold a password
    shared: bool = False  # with other gateways, which divide the chats among them
    objects: ObjectStoreSettings = ObjectStoreSettings()

    @model_validator(mode="after")
    def _require_database(self) -> StoreSettings:
        if self.shared and not self.address:
            raise ValueError("only a database is shared: set PARLOUR_STORE__URL, or leave PARLOUR_STORE__SHARED empty")
        if self.objects.url and not self.address:
            raise ValueError("an object store is used beside a database only: set PARLOUR_STORE__URL")
        return self

    @property
    def address(self) -> str:
        """Return the address itself, empty for the embedded store."""
        return self.url.get_secret_value() if self.url else ""


class DeliverySettings(FrozenModel):
    """Settings of uncertain deliveries."""

    once: Literal["marked", "strict"] = "marked"


class ConsolidationSettings(FrozenModel):
    """The prompt size that a consolidation leaves."""

    keep: Literal["half", "recent"] = "half"


class LogSettings(FrozenModel):
    """Format and level of logs."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], BeforeValidator(lambda value: str(value).lower())
    ] = "info"
    format: Literal["auto", "json", "text"] = "auto"  # auto = text on a terminal, JSON elsewhere


class OtelSettings(FrozenModel):
    """Traces and metrics by OTLP. The exporter reads its own OTEL_* variables."""

    enabled: bool = False
    content: bool = False  # prompts, answers, arguments and results of tools, in the spans


class Settings(BaseSettings):
    """Everything the operator decided. Read once, in the CLI; components get plain values from it."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Path
    owners: Annotated[tuple[Annotated[str, AfterValidator(_owner)], ...], BeforeValidator(split_list)] = ()
    allow_everyone: bool = False  # the second switch of `*` in an allow_from
    timezone: TimeZone = Field(default_factory=machine_zone)
    language: Language = "en"
    llm: LlmSettings = LlmSettings()
    files: FileSettings = FileSettings()
    agent: AgentSettings = AgentSettings()
    agents: AgentGroupSettings = AgentGroupSettings()
    tools: ToolSettings = ToolSettings()
    speech: SpeechSettings = SpeechSettings()
    memory: MemorySettings = MemorySettings()
    web: WebServerSettings = WebServerSettings()
    caps: CapSettings = CapSettings()
    store: StoreSettings = StoreSettings()
    delivery: DeliverySettings = DeliverySettings()
    consolidation: ConsolidationSettings = ConsolidationSettings()
    log: LogSettings = LogSettings()
    otel: OtelSettings = OtelSettings()
    alert_url: SecretWebAddress | None = None  # a webhook's address is its password
    proxy: Proxy | None = None  # may hold a password
    profiles: Mapping[Annotated[str, AfterValidator(parse_profile_name)], ProfileSettings] = Field(default_factory=dict)
    chats: Mapping[Annotated[str, AfterValidator(parse_selector)], ChatSettings] = Field(default_factory=dict)
    channels: Mapping[str, SerializeAsAny[ChannelSettings]] = Field(default_factory=dict)

    @property
    def proxy_address(self) -> str:
        """The proxy as components take it: a plain string, "" = none. Secret."""
        return self.proxy.get_secret_value() if self.proxy else ""

    @property
    def skills_folder(self) -> Path:
        """The folder of the operator's skills, which need not exist."""
        return self.home / Path(self.tools.skills).expanduser()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `gateway.settings.load` gathered: the library's own sources pass unknown names over in silence."""
        return (init_settings,)

    @field_validator("home")
    @classmethod
    def _absolute(cls, home: Path) -> Path:
        return home.expanduser().absolute()

    @model_validator(mode="after")
    def _everyone_needs_two_switches(self) -> Settings:
        for name, block in self.channels.items():
            if "*" in block.allow_from and not self.allow_everyone:
                raise ValueError(
                    f"channels.{name}.allow_from contains *, which admits everyone;"
                    " list who may write, or confirm it with PARLOUR_ALLOW_EVERYONE=true"
                )
        return self


_INTERPRETER = "pydantic_monty"
_FILE_TOOLS = frozenset({"files_list", "files_search", "file_read", "file_write", "file_delete"})
_REMINDER_TOOLS = frozenset({"remind", "reminders", "reminder_change"})


def disabled_tools(settings: ToolSettings) -> Mapping[str, str]:
    """Return the reason of each tool that is off, by name."""
    disabled: dict[str, str] = {}
    if not settings.files:
        disabled |= dict.fromkeys(_FILE_TOOLS, "PARLOUR_TOOLS__FILES is false")
    if not settings.reminders:
        disabled |= dict.fromkeys(_REMINDER_TOOLS, "PARLOUR_TOOLS__REMINDERS is false")
    if not settings.tasks.enabled:
        disabled["task"] = "PARLOUR_TOOLS__TASKS__ENABLED is false"
    if not settings.code.compute:
        disabled["compute"] = "PARLOUR_TOOLS__CODE__COMPUTE is false"
    elif find_spec(_INTERPRETER) is None:
        disabled["compute"] = f"its package pydantic-monty is not installed: {HOW_TO_INSTALL}"
    return disabled
