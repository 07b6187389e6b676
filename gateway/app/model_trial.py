"""Models that servers list, and the trial of a model by small real requests, for init, the console and the doctor.

A server is not trusted. Its redirects are not followed. Its list is bounded in bytes, time and count, and a name that
is not printable ASCII is left out. Names are shown as text, never as markup.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

import structlog

from agent.base.disk import Disk
from agent.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelConfig, ToolCall, usage_of_error
from agent.llm.model_abilities import CALLS_AS_TEXT, LearnedModels
from agent.llm.model_client import ModelClient
from agent.llm.model_registry import open_model
from agent.llm.provider_model import ProviderModel
from agent.turns.recorded_turn import UnrecordedCalls
from gateway.control import connect
from gateway.errors import (
    ContextOverflow,
    EmptyModelReply,
    FailureCause,
    ModelAbility,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnreachable,
    SettingsError,
    UserError,
)
from gateway.home import Home
from gateway.i18n import FALLBACK, translate
from gateway.i18n.failures import cause_line
from gateway.installation import in_container
from gateway.net.addresses import hide_password
from gateway.ports.setup import Finding, fail, ok, warn
from gateway.settings.settings_model import LlmSettings

_LOCAL_SECONDS = 1.0
_LIST_SECONDS = 10.0
_LONGEST_LIST = 4_000_000  # bytes; OpenRouter's has about a tenth of that per hundred models
_MOST_MODELS = 1_000
_NAME = re.compile(r"[!-~]{1,200}\Z")
# What a list names beside chat models. A name that is left out by mistake can still be typed.
_OTHER_USE = re.compile(
    r"embed|whisper|transcribe|tts|speech|audio|realtime|moderation|rerank|dall-e|image|imagen|sora|veo|"
    r"\A(?:models/)?(?:babbage|davinci|aqa)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider whose models litellm knows by `<id>/<name>`."""

    id: str
    title: str
    api_base: str  # where the models are listed
    keys: str  # the page of the provider where a key is made


PROVIDERS: Mapping[str, KnownProvider] = {
    each.id: each
    for each in (
        KnownProvider("openai", "OpenAI", "https://api.openai.com/v1", "https://platform.openai.com/api-keys"),
        KnownProvider(
            "anthropic", "Anthropic", "https://api.anthropic.com/v1", "https://console.anthropic.com/settings/keys"
        ),
        KnownProvider(
            "gemini",
            "Google Gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai",
            "https://aistudio.google.com/apikey",
        ),
        KnownProvider(
            "openrouter", "OpenRouter", "https://openrouter.ai/api/v1", "https://openrouter.ai/settings/keys"
        ),
    )
}
# The usual port of each server; they listen on this machine only, unless they are told otherwise.
LOCAL_SERVERS: Mapping[str, int] = {"Ollama": 11434, "LM Studio": 1234, "llama.cpp": 8080}


class ListProblem(StrEnum):
    """Reason why a server lists no model."""

    KEY = "key"  # it wants a key, or another one
    UNREACHABLE = "unreachable"  # nothing answers in time
    NO_LIST = "no_list"  # what answers lists no models, or too many bytes
    EMPTY = "empty"  # it has none


@dataclass(frozen=True, slots=True)
class ModelList:
    """Models of a server, the newest first if it has their times; or the problem instead."""

    api_base: str
    names: Sequence[str] = ()
    problem: ListProblem | None = None

    @property
    def chat_names(self) -> Sequence[str]:
        """The names without those that tell of another use, such as embeddings."""
        return [name for name in self.names if not _OTHER_USE.search(name)]


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A model server that answers on this machine."""

    title: str
    models: ModelList


async def find_local_servers() -> Sequence[LocalServer]:
    """Return the servers at the usual ports of this machine, from a container also those of its host.

    Takes at most a second. Of a server that answers at both addresses, the nearer one is returned.
    """
    hosts = ["host.docker.internal", "127.0.0.1"] if in_container(os.environ) else ["127.0.0.1"]
    places = [(title, f"http://{host}:{port}/v1") for host in hosts for title, port in LOCAL_SERVERS.items()]
    lists = await asyncio.gather(*(_fetch_list(base, {}, proxy="", seconds=_LOCAL_SECONDS) for _, base in places))
    found = {
        title: models
        for (title, _), models in zip(places, lists, strict=True)
        if models.problem in (None, ListProblem.EMPTY)
    }
    return [LocalServer(title, found[title]) for title in LOCAL_SERVERS if title in found]


async def list_provider_models(provider: KnownProvider, key: str, *, proxy: str = "") -> ModelList:
    """Return the models of *provider*, named as litellm names them. Never raises."""
    headers = _authorization(key)
    if provider.id == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    base = f"{provider.api_base}/models?limit=1000" if provider.id == "anthropic" else f"{provider.api_base}/models"
    found = await _fetch(base, headers, proxy=proxy, seconds=_LIST_SECONDS)
    names = [f"{provider.id}/{each.removeprefix('models/')}" for each in found.names]
    return ModelList("", names, found.problem)


async def list_models_at(address: str, key: str, *, proxy: str = "") -> ModelList:
    """Return the models of the server at *address*; its `/v1` is found where the address lacks it. Never raises."""
    base = address.rstrip("/")
    found = await _fetch_list(base, _authorization(key), proxy=proxy, seconds=_LIST_SECONDS)
    if found.problem is ListProblem.NO_LIST and not base.endswith("/v1"):
        other = await _fetch_list(f"{base}/v1", _authorization(key), proxy=proxy, seconds=_LIST_SECONDS)
        found = found if other.problem is ListProblem.NO_LIST else other
    return found


def _authorization(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def _fetch_list(base: str, headers: Mapping[str, str], *, proxy: str, seconds: float) -> ModelList:
    found = await _fetch(f"{base}/models", headers, proxy=proxy, seconds=seconds)
    return ModelList(base, found.names, found.problem)


async def _fetch(url: str, headers: Mapping[str, str], *, proxy: str, seconds: float) -> ModelList:
    await asyncio.to_thread(import_module, "gateway.net.connector")  # aiohttp takes 0.1 s
    import aiohttp

    from gateway.net import trusted_certificates
    from gateway.net.connector import connector

    verify = await asyncio.to_thread(trusted_certificates) if url.startswith("https:") else False
    # A compressed body could have any size.
    headers = {**headers, "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(seconds),
            aiohttp.ClientSession(connector=connector(proxy, ssl=verify), auto_decompress=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status in (401, 403) or (answer.status == 400 and headers.get("Authorization")):
                return ModelList("", problem=ListProblem.KEY)  # Gemini answers 400 to a key that is none
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > _LONGEST_LIST:
                    return ModelList("", problem=ListProblem.NO_LIST)
    except (
        aiohttp.ClientResponseError,
        aiohttp.ServerDisconnectedError,
        aiohttp.ClientPayloadError,
        aiohttp.InvalidURL,
    ):
        return ModelList("", problem=ListProblem.NO_LIST)  # something else answers there, or nothing can
    except (aiohttp.ClientError, OSError, ValueError):  # TimeoutError is an OSError; a key that no header can carry
        return ModelList("", problem=ListProblem.UNREACHABLE)
    if not 200 <= answer.status < 300:
        return ModelList("", problem=ListProblem.NO_LIST)
    try:
        names = await asyncio.to_thread(_names_in, bytes(body))  # 4 MB of JSON take longer than a turn may wait
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ModelList("", problem=ListProblem.NO_LIST)
    return ModelList("", names, None if names else ListProblem.EMPTY)


def _names_in(body: bytes) -> Sequence[str]:
    """Return the names of the models in a list, as OpenAI's protocol has it. Raises what a wrong body causes."""
    entries: list[dict[str, Any]] = [each for each in json.loads(body)["data"] if isinstance(each, dict)]
    entries.sort(key=_created, reverse=True)  # stable: without a time, the server's order stays
    names = dict.fromkeys(each.get("id") for each in entries if isinstance(each.get("id"), str))
    return [name for name in map(str, names) if _NAME.match(name)][:_MOST_MODELS]


def _created(entry: Mapping[str, Any]) -> float:
    created = entry.get("created")
    return created if isinstance(created, int | float) else 0


log = structlog.get_logger(__name__)

_SECONDS = 30.0  # of one request
SECONDS_TO_LOAD = 120.0  # the same where a server may have to load the model first
_MOST_TRIALS = 200  # that another process hands over
_MOST_TIMES = 3.0  # as long may all requests of a trial take
_TOKENS = 256  # of an answer: enough for a call, after a thought
_TOOL_NAME = "current_time"
_TOOL = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "Return the current time.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_QUESTION = (
    {"role": "system", "content": "Answer in one short sentence."},
    {"role": "user", "content": f"Call the tool {_TOOL_NAME}, then say what time it is."},
)
_ABILITIES = frozenset(ModelAbility)
_KEPT = ok("kept")
_LONGEST_MODEL = 500  # characters
# The lines here name the address or the status too.
_OWN_WORDS = frozenset(
    {
        FailureCause.KEY,
        FailureCause.ACCOUNT,
        FailureCause.ADDRESS,
        FailureCause.MODEL,
        FailureCause.CONNECTION,
    }
)
TRIALS = "model-trials.json"  # in the home: of trials while no gateway ran
_TOOL_USES = "reminders, web pages and changes of memory"
_BETTER_MODEL = (
    "Use a model that was trained to call tools, or switch on tool calling at its server (vLLM:"
    " --enable-auto-tool-choice and --tool-call-parser; llama.cpp: --jinja)"
)
_ADDED = "/completions"  # is appended to the address
_STATUS = re.compile(r"HTTP ([0-9]{3})")
OWN_SERVER = "openai/"  # how litellm names a model behind an address that speaks OpenAI's protocol


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """The result of a trial in words, and the facts about the model that it has shown."""

    finding: Finding
    model: str = ""  # the name of its facts; "" if the model did not answer
    facts: Mapping[str, str] = field(default_factory=dict)

    async def keep(self, models: LearnedModels) -> None:
        """Keep the facts; whatever else was believed to be lacking is tried again by the next requests."""
        if self.model:
            before = [*ModelAbility, CALLS_AS_TEXT]
            await models.learn(self.model, self.facts, forget=[each for each in before if each not in self.facts])


async def hand_over_trials(home: Home, trials: Sequence[ModelTrial]) -> None:
    """Have the gateway of *home* keep what *trials* have shown; one that does not run takes it over at its start."""
    found = [{"model": each.model, "facts": dict(each.facts)} for each in trials if each.model]
    if not found or not await asyncio.to_thread(home.path.is_dir):
        return
    try:
        async with connect(home) as client:
            if client is not None:
                async for _ in client.call("setup learned", {"trials": found}):
                    pass
                return
        await asyncio.to_thread(Disk().replace, home.path / TRIALS, json.dumps(found).encode())
    except (UserError, OSError) as error:
        log.warning("model.trial_not_kept", reason=str(error))  # it is learned again, at the cost of a refused request


async def take_over_trials(home: Path, models: LearnedModels) -> None:
    """Keep what trials have shown while no gateway ran on *home*, and remove their file."""
    path = home / TRIALS
    data = await asyncio.to_thread(Disk().load, path)
    if data is None:
        return
    try:
        await keep_trials(json.loads(data), models)
    except ValueError:
        log.warning("model.trial_unreadable")
    await asyncio.to_thread(path.unlink, missing_ok=True)


async def keep_trials(trials: object, models: LearnedModels) -> None:
    """Keep the trials in *trials*, which came as JSON. Raises ValueError for any other shape."""
    if not isinstance(trials, list):
        raise ValueError("trials must be a list")  # noqa: TRY004 - of JSON
    for each in trials[:_MOST_TRIALS]:
        model, facts = (each.get("model"), each.get("facts")) if isinstance(each, dict) else (None, None)
        if not isinstance(model, str) or not isinstance(facts, dict) or len(model) > _LONGEST_MODEL:
            raise ValueError("a trial must have a model and its facts")
        known = {name: "" for name in facts if name in _ABILITIES or name == CALLS_AS_TEXT}
        await ModelTrial(_KEPT, model, known).keep(models)


async def try_model(llm: LlmSettings, *, proxy: str = "", seconds: float | None = None) -> ModelTrial:
    """Ask *llm* as a turn does: streamed, with a tool, then with its result. It costs some 300 tokens. Never raises.

    A request may take *seconds*, 30 by default, and the trial three times as long.
    """
    seconds = _SECONDS if seconds is None else seconds
    most_seconds = _MOST_TIMES * seconds
    llm = llm.asking()
    base = str(llm.api_base or "").rstrip("/")
    if base.endswith(_ADDED):
        right = hide_password(base).removesuffix(_ADDED).removesuffix("/chat")
        return _failed(f"{llm.model}: this ending of the address is added automatically; change the address to {right}")
    config = ModelConfig(
        model=llm.model,
        api_base=str(llm.api_base or ""),
        api_key=llm.api_key.get_secret_value() if llm.api_key else "",
        timeout=seconds,
        stream_silence=seconds,
        context_window=llm.context_window,
        proxy=proxy,
        client=llm.client,
    )
    try:
        model = open_model(config)
    except SettingsError as error:
        return _failed(str(error))
    started = time.monotonic()
    try:
        await model.warm()
        started = time.monotonic()
        async with asyncio.timeout(most_seconds):
            return await _ask(model, llm, started)
    except TimeoutError:
        return _failed(f"{llm.model}: no complete answer {_where(llm)} within {most_seconds:.0f} s")
    except ModelRateLimited:
        text = f"{llm.model} is reachable, but too busy to answer right now"
        return ModelTrial(warn(text))
    except ModelFailed as failed:
        return _failed(_in_words(failed, llm, seconds))
    finally:
        await model.close()


def _failed(text: str) -> ModelTrial:
    return ModelTrial(fail(text))


async def _ask(model: ChatModel, llm: LlmSettings, started: float) -> ModelTrial:
    """Make the requests of a turn and return their result. Raises ModelFailed."""
    facts, unrecorded = LearnedModels(), UnrecordedCalls()
    client = ModelClient([model], attempts=1, recorder=unrecorded, meter=unrecorded, facts=facts)
    first = await _complete(client, _QUESTION)
    seconds = time.monotonic() - started
    # Otherwise it was still thinking when its tokens were used up, or it is a model without network.
    is_judged = first is not None and not first.is_cut and isinstance(model, ProviderModel)
    calls = first.tool_calls if first is not None else ()
    if not client.lacks(ModelAbility.TOOLS):
        try:
            await _complete(client, [*_QUESTION, *_result_of(first)])
        except ModelRefused as refused:
            if refused.cause is not None:
                raise
            return _failed(f"{llm.model} takes tools, but refuses their results; use another model or server")
    is_written = first is not None and first.written is not None and first.written.is_whole
    missing = [ModelAbility(each.name) for each in client.own_facts() if each.name in _ABILITIES]
    learned = {each.name: each.value for each in client.own_facts()} | ({CALLS_AS_TEXT: ""} if is_written else {})
    text = f"{llm.model} answered in {seconds:.1f} s"
    if missing:
        names = ", ".join(translate(f"commands.ability_{each}", FALLBACK) for each in missing)
        text += f", without {names}: its server refuses that"
    if ModelAbility.TOOLS in missing:
        text += f". Chats work; {_TOOL_USES} do not. {_BETTER_MODEL}"
    elif is_written:
        text += f", but wrote its tool call as text: only tools that look something up will run. {_BETTER_MODEL}"
    elif is_judged and not calls:
        text += f", but called no tool when it was asked to: {_TOOL_USES} may not work. {_BETTER_MODEL}"
    is_good = not missing and bool(calls or not (is_judged or is_written))
    return ModelTrial(ok(text) if is_good else warn(text), client.names()[0][1], learned)


async def _complete(client: ModelClient, messages: Sequence[Mapping[str, Any]]) -> ChatReply | None:
    """Return the answer to *messages*, streamed; None if the model only thought. Raises ModelFailed."""
    request = ChatRequest(messages=messages, tools=[_TOOL], turn="t-setup", max_tokens=_TOKENS)
    try:
        try:
            return await client.complete(request, sink=lambda _: None)
        except ModelUnreachable as error:
            if usage_of_error(error) is None:
                raise
            # It broke off, or its server marks no ends: the second such answer is taken (agent/llm/provider_model.py).
            return await client.complete(request, sink=lambda _: None)
    except EmptyModelReply:
        return None  # the model exists and accepts the key


def _result_of(reply: ChatReply | None) -> list[dict[str, Any]]:
    """Return the call in *reply* with its result, as a turn sends them; without a call, one of the trial's own."""
    call = next(iter(reply.tool_calls if reply is not None else ()), ToolCall("call00001", _TOOL_NAME, "{}"))
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    said: dict[str, Any] = {"role": "assistant", "content": (reply.text if reply is not None else "") or None}
    said["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
    if reply is not None and reply.thinking is not None:
        said["thinking"] = reply.thinking
    return [said, {"role": "tool", "tool_call_id": call.id, "content": "12:00"}]


async def find_name_at_address(model: str, base: str, key: str, *, proxy: str) -> tuple[str, list[str]]:
    """Return *model* as litellm names it behind *base*, and the models of a server that lists others only."""
    names = sorted((await list_models_at(base, key, proxy=proxy)).names)
    own = model.removeprefix(OWN_SERVER)
    if own not in names and ("/" in own or _is_misspelt(own)):
        return model, []  # a provider that litellm knows, such as ollama/qwen3; or `ofline`, which the try says
    return f"{OWN_SERVER}{own}", [] if own in names else names


def _is_misspelt(name: str) -> bool:
    """Return True if *name* is nearly that of a model of our own, such as `ofline`."""
    try:
        open_model(ModelConfig(model=name))
    except SettingsError:
        return True
    return False


def _where(llm: LlmSettings) -> str:
    return f"at {hide_password(str(llm.api_base))}" if llm.api_base else "at its provider"


def _in_words(failed: ModelFailed, llm: LlmSettings, seconds: float) -> str:
    where = _where(llm)
    if isinstance(failed, ContextOverflow):
        size = f" ({failed.window:,} tokens)" if failed.window else ""
        return (
            f"{llm.model}: its context window{size} is too small for a short question; set 16,000 or more at its server"
        )
    if failed.cause is not None and failed.cause not in _OWN_WORDS:
        return f"{llm.model}: {cause_line(failed.cause)}"
    if isinstance(failed, ModelUnreachable):
        if found := _STATUS.search(str(failed)):
            return f"{llm.model}: the server {where} fails (HTTP {found[1]}); see its log"
        if failed.cause is None:
            return (
                f"{llm.model}: the server {where} broke off before its answer was complete; see its log, and try again"
            )
        return (
            f"{llm.model}: nothing answers {where}; check that the address is correct and reachable from this machine"
        )
    if isinstance(failed, ModelTimeout):
        hint = (
            "if it is still loading the model, try again; otherwise see its log" if llm.api_base else "try again later"
        )
        return f"{llm.model}: no answer {where} within {seconds:.0f} s; {hint}"
    if isinstance(failed, ModelRefused):
        return f"{llm.model}: {_error_finding(str(failed), llm, where)}"
    return f"{llm.model}: the server {where} does not answer as a model API does; check that the address is correct"


def _error_finding(text: str, llm: LlmSettings, where: str) -> str:
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    if "quota" in text:
        return "the account of this key has no credit left; add credit at the provider, or use another key"
    if status in (401, 403) and llm.api_key is None:
        return "it requires an API key, and none is set; set one"
    if status in (401, 403):
        return f"the key was rejected (HTTP {status}); copy it again, and check that it is from this provider"
    if status == 404:
        hint = "; most addresses end in /v1" if llm.api_base else ""
        return f"no model of this name exists {where} (HTTP 404); check its list of models{hint}"
    if status == 400 and "/" not in llm.model:
        return "the provider of this name is unknown; write provider/model, such as openai/gpt-5"
    reason = f"HTTP {status}" if status else "no reason given"
    return f"the request was rejected {where} ({reason}); check the model's name"
