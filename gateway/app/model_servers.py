"""Model servers: the providers, those that may run on this machine, and the names of the models that a server lists.

A server is not trusted. Its redirects are not followed. Its list is bounded in bytes, time and count, and a name that
is not printable ASCII is left out. Names are shown as text, never as markup.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from gateway.installation import in_container

_LOCAL_SECONDS = 1.0
_SECONDS = 10.0
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
    found = await _fetch(base, headers, proxy=proxy, seconds=_SECONDS)
    names = [f"{provider.id}/{each.removeprefix('models/')}" for each in found.names]
    return ModelList("", names, found.problem)


async def list_models_at(address: str, key: str, *, proxy: str = "") -> ModelList:
    """Return the models of the server at *address*; its `/v1` is found where the address lacks it. Never raises."""
    base = address.rstrip("/")
    found = await _fetch_list(base, _authorization(key), proxy=proxy, seconds=_SECONDS)
    if found.problem is ListProblem.NO_LIST and not base.endswith("/v1"):
        other = await _fetch_list(f"{base}/v1", _authorization(key), proxy=proxy, seconds=_SECONDS)
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
