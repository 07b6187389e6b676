"""Verification of a model by one small real call, for `parlour init`, the console and `parlour doctor`."""

from __future__ import annotations

import asyncio
import json
import re
import time

from agent.llm.chat_model import ChatRequest, ModelConfig
from agent.llm.model_registry import open_model
from gateway.errors import (
    ContextOverflow,
    EmptyModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnreachable,
    SettingsError,
)
from gateway.net.web_credentials import hide_password
from gateway.ports.setup import SetupFinding, SetupLevel
from gateway.settings.llm import LlmSettings

_SECONDS = 30.0
_LIST_SECONDS = 10.0
_LONGEST_LIST = 1_000_000  # bytes
_MOST_LISTED = 200
_TOKENS = 16  # enough for a first word
_ADDED = "/completions"  # is appended to the address
_NAME = re.compile(r"[!-~]{1,200}\Z")
_STATUS = re.compile(r"HTTP ([0-9]{3})")
OWN_SERVER = "openai/"  # how litellm names a model behind an address that speaks OpenAI's protocol


async def try_model(llm: LlmSettings, *, proxy: str = "") -> SetupFinding:
    """Make one small call to *llm* and return the result in words. It costs a few tokens. Never raises."""
    llm = llm.asking()
    base = str(llm.api_base or "").rstrip("/")
    if base.endswith(_ADDED):
        right = base.removesuffix(_ADDED).removesuffix("/chat")
        text = (
            f"{llm.model}: this ending of the address is added automatically;"
            f" change the address to {hide_password(right)}"
        )
        return SetupFinding(level=SetupLevel.WRONG, text=text, id="model")
    config = ModelConfig(
        model=llm.model,
        api_base=str(llm.api_base or ""),
        api_key=llm.api_key.get_secret_value() if llm.api_key else "",
        timeout=_SECONDS,
        stream_silence=_SECONDS,
        context_window=llm.context_window,
        proxy=proxy,
        client=llm.client,
    )
    try:
        model = open_model(config)
    except SettingsError as error:
        return SetupFinding(level=SetupLevel.WRONG, text=str(error), id="model")
    question = [{"role": "user", "content": "Say ok."}]
    started = time.monotonic()
    try:
        await model.warm()
        started = time.monotonic()
        await model.complete(ChatRequest(messages=question, turn="t-setup", max_tokens=_TOKENS))
    except (EmptyModelReply, ContextOverflow):
        pass  # it used up its few tokens by thinking: the model exists and accepts the key
    except ModelRateLimited:
        text = f"{llm.model} is reachable, but too busy to answer right now"
        return SetupFinding(level=SetupLevel.WARNING, text=text, id="model")
    except ModelFailed as failed:
        return SetupFinding(level=SetupLevel.WRONG, text=_in_words(failed, llm), id="model")
    finally:
        await model.close()
    return SetupFinding(
        level=SetupLevel.GOOD, text=f"{llm.model} answered in {time.monotonic() - started:.1f} s", id="model"
    )


async def find_name_at_address(model: str, base: str, key: str, *, proxy: str) -> tuple[str, list[str]]:
    """Return *model* as litellm names it behind *base*, and the models of a server that lists others only."""
    names = await list_models(base, key, proxy=proxy)
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


async def list_models(base: str, key: str, *, proxy: str = "") -> list[str]:
    """Return at most 200 names that an OpenAI-compatible server lists under /models; () where it lists none.

    Never raises: `try_model` finds out whether the server answers.
    """
    import httpx

    from gateway.net.httpx_proxy import transport

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            asyncio.timeout(_LIST_SECONDS),
            httpx.AsyncClient(transport=transport(proxy)) as client,
            client.stream("GET", f"{base.rstrip('/')}/models", headers=headers) as answer,
        ):
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > _LONGEST_LIST:
                    return []
            listed = json.loads(body)["data"] if answer.is_success else []
            # The server may not be ours: names with control characters are skipped.
            return sorted({str(each["id"]) for each in listed if _NAME.match(str(each["id"]))})[:_MOST_LISTED]
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError, TypeError):  # TimeoutError is an OSError
        return []


def _in_words(failed: ModelFailed, llm: LlmSettings) -> str:
    where = f"at {hide_password(str(llm.api_base))}" if llm.api_base else "at its provider"
    if isinstance(failed, ModelUnreachable):
        return (
            f"{llm.model}: nothing answers {where}; check that the address is correct and reachable from this machine"
        )
    if isinstance(failed, ModelTimeout):
        return f"{llm.model}: no answer {where} within {_SECONDS:.0f} s; check that the address is correct"
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
