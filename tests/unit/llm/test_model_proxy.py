"""Everything that models are asked goes through the operator's proxy, with litellm and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from agent.attachments.speech import TRANSCRIPTION, TRANSCRIPTION_SECONDS, LitellmTranscriber
from agent.llm.chat_model import ModelConfig
from agent.llm.litellm_model import LitellmModel, close_litellm
from agent.llm.media_model import TEXT_BYTES, MediaModel, UsageAttribution
from agent.llm.openai_model import OpenAIModel
from agent.llm.provider_model import ProviderModel
from agent.memory.search.embedding_models import LitellmEmbedder
from gateway.errors import ModelFailed, ModelUnreachable
from gateway.events import PlatformAccount
from tests.fakes.llm_context import FakeUsageRecorder, SummingMeter, request
from tests.fakes.openai_server import FakeOpenAI, open_server
from tests.fakes.proxies import Names, open_http_proxy, open_socks

pytestmark = pytest.mark.xdist_group("litellm")
CLIENTS = pytest.mark.parametrize("client", [OpenAIModel, LitellmModel], ids=["direct", "litellm"])
HOST = "models.example"
BASE = f"http://{HOST}/v1"


@pytest.fixture
async def server() -> AsyncIterator[FakeOpenAI]:
    """Give a model server, which has no name here."""
    async with open_server() as server:
        yield server


@pytest.fixture
async def model() -> AsyncIterator[None]:
    """Leave litellm as it was found."""
    yield
    await close_litellm()


def names(server: FakeOpenAI) -> Names:
    """Return where the model server is for the proxy alone."""
    return {HOST: ("127.0.0.1", urlsplit(server.base).port or 0)}


@CLIENTS
@pytest.mark.parametrize("scheme", ["socks5h", "http"])
@pytest.mark.usefixtures("model")
async def test_each_kind_of_call_goes_through_the_proxy(
    server: FakeOpenAI, scheme: str, client: type[ProviderModel]
) -> None:
    """A plain answer, a stream, an embedding and a transcription of a host that only the proxy knows."""
    opened = open_socks if scheme == "socks5h" else open_http_proxy
    async with opened(names(server), user="ann", password="secret") as proxy:
        address = proxy.url(scheme)
        chat = client(ModelConfig(model="openai/test", api_base=BASE, api_key="k", proxy=address))
        streamed: list[str] = []
        assert (await chat.complete(request("hello"))).text
        assert (await chat.complete(request("hello"), sink=streamed.append)).text == streamed[-1]
        vectors = await LitellmEmbedder("openai/embed", api_base=BASE, api_key="k", proxy=address).embed(["a", "b"])
        assert len(vectors) == 2
        ears = LitellmTranscriber(
            MediaModel(
                "openai/whisper-1",
                purpose=TRANSCRIPTION,
                seconds=TRANSCRIPTION_SECONDS,
                most_bytes=TEXT_BYTES,
                api_base=BASE,
                api_key="k",
                proxy=address,
                recorder=FakeUsageRecorder(),
                meter=SummingMeter(),
            )
        )
        heard = await ears.transcribe(
            b"OggS",
            name="v.ogg",
            media_type="audio/ogg",
            attribution=UsageAttribution("t", PlatformAccount(kind="telegram", id="7"), "c"),
        )
        assert heard.text == "what was said"
        assert proxy.hosts() == {HOST}
        assert "secret" not in repr(chat._config)
        await chat.close()
        await close_litellm()


PROVIDERS = {
    "openai/gpt-5": "api.openai.com",
    "anthropic/claude-sonnet-4-5": "api.anthropic.com",
    "gemini/gemini-2.5-flash": "generativelanguage.googleapis.com",
    "mistral/mistral-large-latest": "api.mistral.ai",
    "openrouter/some/model": "openrouter.ai",
    "groq/llama-3.3-70b-versatile": "api.groq.com",
}


@pytest.mark.usefixtures("model")
async def test_every_provider_is_asked_for_at_the_proxy_and_nowhere_else() -> None:
    """Whatever client litellm has for a provider, the proxy hears the name; with it down, nothing gets out."""
    async with open_socks() as proxy:
        for name, host in PROVIDERS.items():
            before = len(proxy.asked)
            await _fails(LitellmModel, name, proxy.url("socks5h"))
            assert {asked for asked, _ in proxy.asked[before:]} == {host}, name


async def test_openai_is_asked_for_at_the_proxy_without_litellm() -> None:
    """Without an address the model is OpenAI's own; its name is resolved by the proxy alone."""
    async with open_socks() as proxy:
        await _fails(OpenAIModel, "openai/gpt-5", proxy.url("socks5h"))
        assert proxy.hosts() == {"api.openai.com"}


@CLIENTS
async def test_a_model_of_ones_own_is_reached_past_the_proxy(
    server: FakeOpenAI, model: None, client: type[ProviderModel]
) -> None:
    """An address on this machine is not the proxy's business; neither is it once there is no proxy any more."""
    async with open_socks() as proxy:
        for address in (proxy.url("socks5h"), ""):
            chat = client(ModelConfig(model="openai/test", api_base=server.base, api_key="k", proxy=address))
            assert (await chat.complete(request("hello"))).text
            await chat.close()
        assert proxy.asked == []


@CLIENTS
async def test_a_proxy_that_is_down_is_a_model_that_is_not_reached(
    server: FakeOpenAI, model: None, client: type[ProviderModel]
) -> None:
    """The turn is told what it is told when the network is gone, and is tried again as then."""
    async with open_socks(names(server)) as proxy:
        chat = client(ModelConfig(model="openai/test", api_base=BASE, api_key="k", proxy=proxy.url("socks5h")))
        proxy.is_down = True
        with pytest.raises(ModelUnreachable):
            await chat.complete(request("hello"))
        proxy.is_down = False
        assert (await chat.complete(request("hello"))).text
        await chat.close()


async def _fails(client: type[ProviderModel], name: str, proxy: str) -> None:
    chat = client(ModelConfig(model=name, api_key="k", timeout=10, proxy=proxy))
    with pytest.raises(ModelFailed):
        await chat.complete(request("hello"))
    await chat.close()
