"""Trial of a model by small real requests, for `parlour init`, the console and `parlour doctor`."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from gateway.app.model_servers import list_models_at
from gateway.control.gateway_client import connect
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
from gateway.net.addresses import hide_password
from gateway.ports.setup import Finding, fail, ok, warn
from gateway.settings.llm import LlmSettings

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
