"""No connection to a model server, and servers behind basic authorization: the cause is named, the password never."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from agent.llm.chat_model import ModelConfig
from agent.llm.litellm_model import LitellmModel, close_litellm
from agent.llm.openai_model import OpenAIModel
from agent.llm.provider_model import ProviderModel
from agent.memory.search.embedding_models import LitellmEmbedder
from gateway.errors import FailureCause, ModelFailed, ModelUnreachable
from gateway.net.addresses import hide_password, restore_password, split_credentials
from gateway.settings import Settings, secret_values
from gateway.text.redaction import SecretRedactor
from tests.fakes.llm_context import request
from tests.fakes.loopback import serve_app
from tests.fakes.openai_server import open_server
from tests.fakes.proxies import HostCertificate

pytestmark = pytest.mark.xdist_group("litellm")
CLIENTS = pytest.mark.parametrize("client", [OpenAIModel, LitellmModel], ids=["direct", "litellm"])
PASSWORD = "pass word/7"


async def fail(model: ProviderModel) -> ModelFailed:
    """Return the error of one call."""
    try:
        with pytest.raises(ModelFailed) as raised:
            await model.complete(request("hello"))
    finally:
        await model.close()
        await close_litellm()
    return raised.value


@CLIENTS
@pytest.mark.parametrize(
    ("base", "cause"),
    [
        ("http://127.0.0.1:9/v1", FailureCause.CONNECTION),
        ("http://no-such-host.invalid/v1", FailureCause.HOST),
    ],
    ids=["refused", "unknown"],
)
async def test_a_server_that_is_not_there(client: type[ProviderModel], base: str, cause: FailureCause) -> None:
    """A refused connection and an unknown host are told apart."""
    failed = await fail(client(ModelConfig(model="openai/x", api_base=base, api_key="k", timeout=20)))
    assert (type(failed), failed.cause) == (ModelUnreachable, cause)


@CLIENTS
@pytest.mark.parametrize("name", ["127.0.0.1", "model.example"], ids=["issuer", "name"])
async def test_a_certificate_fault_is_named(
    client: type[ProviderModel], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A self-signed certificate and one for another host have their own remedies."""
    made = HostCertificate.of(name, tmp_path)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    if name != "127.0.0.1":
        monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    async with serve_app(answer, ssl_context=made.shown()) as place:
        failed = await fail(client(ModelConfig(model="openai/x", api_base=f"https://{place}/v1", api_key="k")))
    expected = FailureCause.CERTIFICATE_SELF_SIGNED if name == "127.0.0.1" else FailureCause.CERTIFICATE_NAME
    assert (type(failed), failed.cause) == (ModelUnreachable, expected)
    assert failed.cause is not None
    assert failed.cause.is_permanent


@CLIENTS
async def test_a_server_without_tls(client: type[ProviderModel]) -> None:
    """https:// for a server that speaks plain HTTP is no certificate fault."""
    async with open_server(["ok"]) as server:
        base = server.base.replace("http://", "https://")
        failed = await fail(client(ModelConfig(model="openai/x", api_base=base, api_key="k")))
    assert (type(failed), failed.cause) == (ModelUnreachable, FailureCause.TLS)


async def test_a_proxy_that_is_not_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the environment names a proxy and PARLOUR_PROXY does not, a failed connection says so."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "localhost")
    far = ModelConfig(model="openai/x", api_base="http://no-such-host.invalid/v1")
    assert (await fail(OpenAIModel(far))).cause is FailureCause.PROXY_UNUSED
    near = replace(far, api_base="http://127.0.0.1:9/v1")  # is reached without a proxy in any case
    assert (await fail(OpenAIModel(near))).cause is FailureCause.CONNECTION
    monkeypatch.setenv("NO_PROXY", "no-such-host.invalid")
    assert (await fail(OpenAIModel(far))).cause is FailureCause.HOST


@CLIENTS
async def test_user_and_password_of_an_address_are_sent(client: type[ProviderModel]) -> None:
    """They are basic authorization, whatever the key; no error and no representation shows the password."""
    given = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
    async with open_server(lambda _body, _n: "ok") as server:
        base = server.base.replace("://", "://ann:pass%20word%2F7@")
        config = ModelConfig(model="openai/x", api_base=base, api_key="k")
        model = client(config)
        assert (await model.complete(request("hello"))).text == "ok"
        await model.close()
        await close_litellm()
    assert [headers["Authorization"] for headers in server.headers] == [f"Basic {given}"]
    assert "pass%20word" not in repr(config)
    failed = await fail(client(replace(config, api_base="http://ann:pass%20word%2F7@127.0.0.1:9/v1")))
    assert "word" not in str(failed)


async def test_embeddings_send_user_and_password_too() -> None:
    """The same address works for embeddings."""
    async with open_server([]) as server:
        base = server.base.replace("://", "://ann:secret@")
        embedder = LitellmEmbedder("openai/embed", api_base=base, api_key="k")
        await embedder.embed(["hello"])
        await close_litellm()
    given = base64.b64encode(b"ann:secret").decode()
    assert [headers["Authorization"] for headers in server.headers][-1:] in ([f"Basic {given}"], [])


def test_an_address_is_shown_without_its_password() -> None:
    """What is shown can be given back, and then means the address that was shown."""
    address = "https://ann:secret-word@host.example:8443/v1?x=1"
    assert hide_password(address) == "https://ann:***@host.example:8443/v1?x=1"
    assert restore_password(hide_password(address), address) == address
    assert restore_password("https://other/v1", address) == "https://other/v1"
    for plain in ("https://host/v1", "https://ann@host/v1", "", "no address"):
        assert hide_password(plain) == plain
    assert split_credentials("http://ann@host/v1") == ("http://host/v1", f"Basic {base64.b64encode(b'ann:').decode()}")
    assert split_credentials("http://host/v1") == ("http://host/v1", "")


def test_redaction_knows_the_password_of_an_address(tmp_path: Path) -> None:
    """Logs and answers do not show it, encoded or not."""
    llm = {"model": "openai/x", "api_base": "http://ann:secret%2Fword7@host.example/v1"}
    settings = Settings.model_validate({"home": tmp_path, "llm": llm})
    redactor = SecretRedactor(secret_values(settings))
    for shown in ("secret%2Fword7", "secret/word7", llm["api_base"]):
        assert "word7" not in redactor.redact_log(f"x {shown} y")
        assert "word7" not in redactor.redact(f"x {shown} y")
