"""The ObjectStore port over a directory and a bucket, what each says when it fails, and the doctor's look at them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.errors import SettingsError, StoreUnavailable
from gateway.health.network_checks import probe_objects
from gateway.ports.setup import FindingLevel
from gateway.settings.settings_model import ObjectStoreSettings, StoreSettings
from gateway.store.objects import ObjectStore, open_objects
from tests.fakes.object_stores import ObjectBackend, bucket_settings, open_object_backend
from tests.fakes.proxies import open_http_proxy
from tests.fakes.s3_server import BUCKET, S3Server, open_s3_server

LARGE = bytes(range(256)) * 4 * 1024 * 5  # 5 MB


@pytest.fixture(params=["directory", "bucket"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectBackend]:
    """Return an empty place for objects."""
    async with open_object_backend(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
async def server() -> AsyncIterator[S3Server]:
    """Return a server with an empty bucket."""
    async with open_s3_server() as opened:
        yield opened


async def read(objects: ObjectStore, name: str) -> bytes:
    """Return an object's bytes."""
    return b"".join([data async for data in objects.read(name)])


async def test_an_object_is_stored_replaced_and_removed(place: ObjectBackend) -> None:
    """Of every size; storing and removing twice is the same as once."""
    objects = place.open()
    for data in (b"", b"\x00\xff", LARGE, LARGE):
        await objects.put("ab-1", data)
        assert await read(objects, "ab-1") == data
    assert place.contents() == {"ab-1": LARGE}
    for _ in range(2):
        await objects.delete("ab-1")
    assert place.contents() == {}
    with pytest.raises(StoreUnavailable, match=r"store\.objects\.url"):
        await read(objects, "ab-1")


async def test_two_gateways_write_the_same_object_at_once(place: ObjectBackend) -> None:
    """It is one of both, whole."""
    first, second = place.open(), place.open()
    await asyncio.gather(*(each.put("ab-1", LARGE) for each in (first, second)))
    assert await read(first, "ab-1") == LARGE
    assert place.contents() == {"ab-1": LARGE}


async def test_a_place_that_is_away_is_named_and_comes_back(place: ObjectBackend) -> None:
    """Each operation fails with a text for an operator, and works again afterwards."""
    objects = place.open()
    await objects.put("ab-1", b"kept")
    place.set_away(True)
    for attempt in (objects.put("ab-2", b"lost"), read(objects, "ab-1"), objects.delete("ab-1")):
        with pytest.raises(StoreUnavailable, match=r"store\.objects\.url"):
            await attempt
    place.set_away(False)
    assert place.contents() == {"ab-1": b"kept"}
    assert await read(objects, "ab-1") == b"kept"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"secret_key": "another"}, "refuses store.objects.access_key and secret_key"),
        ({"access_key": "another"}, "refuses store.objects.access_key and secret_key"),
        ({"url": "s3://no-such-bucket/x"}, "bucket no-such-bucket of store.objects.url does not exist"),
        ({"endpoint": "http://127.0.0.1:9"}, "cannot be reached"),
    ],
)
async def test_a_mistake_in_the_settings_is_named(server: S3Server, changed: dict[str, str], text: str) -> None:
    """By each operation, and by the doctor; without the secret key."""
    objects = open_objects(bucket_settings(server, **changed))
    for attempt in (objects.put("ab-1", b"x"), read(objects, "ab-1"), objects.delete("ab-1")):
        with pytest.raises(StoreUnavailable) as raised:
            await attempt
        assert text in str(raised.value)
        assert "parlour-secret" not in str(raised.value)
        assert len(str(raised.value)) < 400
    finding = await probe_objects(objects, "s3://x")
    assert (finding.level, finding.id) == (FindingLevel.FAIL, "store.objects")
    assert text in finding.text
    assert server.objects == {}


_XML = "<?xml version='1.0' encoding='UTF-8'?>\n<Error><Code>{}</Code><Message>…</Message></Error>"


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (403, _XML.format("RequestTimeTooSkewed"), "clock differs too much from the server's: set both by NTP"),
        (400, _XML.format("AuthorizationHeaderMalformed"), "in another region: set store.objects.region"),
        (301, _XML.format("PermanentRedirect"), "in another region: set store.objects.region"),
        (400, _XML.format("InvalidDigest"), "(InvalidDigest)"),
        (400, _XML.format("InvalidDigest"), "cannot be reached: Generic S3 error"),
        (403, _XML.format("x" * 9_999), "refuses store.objects.access_key and secret_key"),
    ],
)
async def test_what_servers_say_is_understood(server: S3Server, status: int, body: str, text: str) -> None:
    """As Ceph, Swift and Amazon answer: keys are not blamed for the clock or the region."""
    server.refusal = (status, body)
    objects = open_objects(bucket_settings(server))
    for attempt in (objects.put("ab-1", b"x"), read(objects, "ab-1"), objects.delete("ab-1")):
        with pytest.raises(StoreUnavailable) as raised:
            await attempt
        assert text in str(raised.value)
        assert len(str(raised.value)) < 500


async def test_a_connection_that_breaks_in_an_object_is_made_again(server: S3Server) -> None:
    """An upload begins anew and leaves no piece; a download goes on where it was."""
    objects = open_objects(bucket_settings(server))
    server.cut_after = 100_000
    await objects.put("ab-1", LARGE)
    assert [len(data) for data in server.objects.values()] == [len(LARGE)]
    server.cut_after = 2_000_000
    assert await read(objects, "ab-1") == LARGE
    assert server.cut_after is None


async def test_the_doctor_tries_every_right(place: ObjectBackend) -> None:
    """It leaves nothing behind."""
    finding = await probe_objects(place.open(), "s3://bucket/team")
    assert (finding.level, finding.id) == (FindingLevel.OK, "store.objects")
    assert "s3://bucket/team, which can be written, read and deleted from" in finding.text
    assert place.contents() == {}


async def test_the_doctor_names_the_right_that_is_missing(server: S3Server) -> None:
    """Without the right to delete, what people forget would stay."""
    server.may_delete = False
    finding = await probe_objects(open_objects(bucket_settings(server)), "s3://x")
    assert finding.level is FindingLevel.FAIL
    assert "lack the right to delete objects" in finding.text


async def test_a_hanging_server_is_given_up(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has a limit of time."""
    monkeypatch.setattr("gateway.store.objects._REQUEST", "50ms")
    server.hold = asyncio.Event()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await open_objects(bucket_settings(server)).put("ab-1", b"x")


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3://Bucket", "s3://b/x?y", "http://bucket", "file://", "file:///", "file://host/x", "/var/x",
        "s3://bucket/a//b", "s3://bucket/../b",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """The text shows the two forms."""
    with pytest.raises(ValidationError, match="s3://bucket/prefix, or file:///directory"):
        ObjectStoreSettings(url=url)


def test_a_bucket_needs_keys_and_an_object_store_a_database() -> None:
    """The text names the variables."""
    with pytest.raises(ValidationError, match="PARLOUR_STORE__OBJECTS__ACCESS_KEY"):
        ObjectStoreSettings(url=f"s3://{BUCKET}")
    with pytest.raises(ValidationError, match="set PARLOUR_STORE__URL"):
        StoreSettings(objects=ObjectStoreSettings(url="file:///srv/objects"))
    assert ObjectStoreSettings(url="").url is None


async def test_a_bucket_elsewhere_is_reached_through_the_proxy_alone(server: S3Server) -> None:
    """The operator's proxy, with its password; when that is down, no way around it is taken."""
    port = int(server.address.rpartition(":")[2])
    names = {"files.example.org": ("127.0.0.1", port)}
    settings = bucket_settings(server, endpoint=f"http://files.example.org:{port}")
    with pytest.raises(SettingsError, match="SOCKS"):
        open_objects(settings, "socks5h://127.0.0.1:1")
    async with open_http_proxy(names, user="ann", password="pass") as proxy:
        objects = open_objects(settings, proxy.url("http"))
        await objects.put("ab-1", b"x")
        assert await read(objects, "ab-1") == b"x"
        assert proxy.hosts() == {"files.example.org"}
        proxy.is_down = True
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await open_objects(settings, proxy.url("http")).delete("ab-1")
    assert len(server.objects) == 1


async def test_the_environment_of_the_library_decides_nothing(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that Amazon's tools and proxies go by lead neither elsewhere nor past the signature."""
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_REGION", "another")
    for proxy in ("", "http://127.0.0.1:9"):  # which machines of one's own network are reached without
        await open_objects(bucket_settings(server), proxy).put("ab-1", b"x")
    assert len(server.objects) == 1
