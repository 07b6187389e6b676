"""Web Push: what is sent can be read by the browser alone, and no endpoint costs more than it should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from channels.web import push
from channels.web.push import (
    FRESH,
    LONGEST_PAYLOAD,
    MOST_BROWSERS,
    BadSubscription,
    PushNotice,
    PushNotifier,
    TooManyBrowsers,
    encrypt,
)
from gateway.net import public_http
from gateway.store.records import SqlChannelState
from gateway.store.sql_store import SqlStore
from tests.fakes.push_server import PushServer, SubscribedBrowser, push_server, unb64
from tests.fakes.store import open_inline_store

START = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


class Scene:
    """A notifier over a real store and a real service, with a clock that is moved."""

    def __init__(self, server: PushServer, store: SqlStore) -> None:
        self.server = server
        self.now = START
        self.ended: set[str] = set()
        self.notifier = self.second(store)

    def second(self, store: SqlStore) -> PushNotifier:
        """Return the notifier of a gateway of *store*."""

        async def secret() -> str:
            return "s" * 40

        async def is_valid(_: str, login: str) -> bool:
            return login not in self.ended

        client = self.server.client()
        return PushNotifier(
            store.state("web"), client, secret=secret, contact="", is_valid=is_valid, now=lambda: self.now
        )

    def notice(self, **facts: str) -> PushNotice:
        """Return a notice of an answer that was delivered at the start."""
        return PushNotice(turn="tabcdefghijklmnop", conversation="main", at=START, line="A new message.", **facts)


@pytest_asyncio.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Give a scene."""
    store = await open_inline_store(tmp_path / "journal.db")
    async with push_server(tmp_path, monkeypatch) as server:
        yield Scene(server, store)
    await store.close()


def test_the_example_of_the_rfc_is_encrypted_byte_for_byte() -> None:
    """RFC 8291, section 5."""
    key = ec.derive_private_key(
        int.from_bytes(unb64("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"), "big"), ec.SECP256R1()
    )
    sealed = encrypt(
        b"When I grow up, I want to be a watermelon",
        unb64("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"),
        unb64("BTBZMqHH6r4Tts7J_aSIgg"),
        key=key,
        salt=unb64("DGv6ra1nlYgDCS1FRnbzlw"),
    )
    assert sealed == unb64(
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_"
        "yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


def test_the_longest_payload_fits_into_one_record() -> None:
    """4,096 bytes are what a push service has to take; one byte more is refused."""
    browser = SubscribedBrowser("https://push.example/1")
    sealed = encrypt(b"x" * LONGEST_PAYLOAD, browser.point, browser.auth)
    assert (len(sealed), browser.decrypt(sealed)) == (4_096, b"x" * LONGEST_PAYLOAD)
    with pytest.raises(ValueError, match="one record"):
        encrypt(b"x" * (LONGEST_PAYLOAD + 1), browser.point, browser.auth)


async def test_a_notification_says_little_unless_the_person_chose_more(scene: Scene) -> None:
    """By default only that there is something; title and first words for a browser that was told to show them."""
    shy, open_ = scene.server.subscribe("shy"), scene.server.subscribe("open")
    await scene.notifier.add("ann", shy.facts(), "")
    await scene.notifier.add("ann", open_.facts(shows_text=True), "")
    notice = scene.notice(title="The roof", text="It costs " + "ä" * 3_000)
    again, _ = await scene.notifier.notify("ann", notice)
    assert list(again) == []
    found = sorted(scene.server.received, key=lambda each: len(each["body"]))
    assert found[0] == {"tag": notice.turn, "conversation": "main", "title": "Parlour", "body": "A new message."}
    assert (found[1]["title"], found[1]["body"][:9], len(found[1]["body"])) == ("The roof", "It costs ", 160)
    (one, _) = scene.server.headers
    assert (one["TTL"], one["Urgency"], one["Topic"]) == (str(int(FRESH.total_seconds())), "normal", notice.turn)


async def test_a_browser_whose_login_ended_gets_nothing_and_is_removed(scene: Scene) -> None:
    """Also if it was ended at another gateway, or has run out: that is looked at when something is sent."""
    await scene.notifier.add("ann", scene.server.subscribe("gone").facts(), "old login")
    await scene.notifier.add("ann", scene.server.subscribe("here").facts(), "")
    scene.ended.add("old login")
    await scene.notifier.notify("ann", scene.notice())
    assert (len(scene.server.received), len(await scene.notifier.browsers("ann"))) == (1, 1)


@pytest.mark.parametrize("status", [404, 410])
async def test_a_browser_that_the_service_does_not_know_is_removed(scene: Scene, status: int) -> None:
    """The person unsubscribed in the browser, or has removed it."""
    await scene.notifier.add("ann", scene.server.subscribe().facts(), "")
    scene.server.answers = [web.Response(status=status)]
    again, _ = await scene.notifier.notify("ann", scene.notice())
    assert (list(again), list(await scene.notifier.browsers("ann"))) == ([], [])


@pytest.mark.parametrize("retry_after", ["600", format_datetime(START + timedelta(minutes=10), usegmt=True)])
async def test_retry_after_is_obeyed_by_every_notification(scene: Scene, retry_after: str) -> None:
    """In both forms: also another answer is not sent before, and the first one comes after it."""
    await scene.notifier.add("ann", scene.server.subscribe().facts(), "")
    scene.server.answers = [web.Response(status=429, headers={"Retry-After": retry_after})]
    again, delay = await scene.notifier.notify("ann", scene.notice())
    assert (len(again), delay) == (1, timedelta(minutes=10))
    scene.now += timedelta(minutes=9, seconds=59)
    _, delay = await scene.notifier.notify("ann", scene.notice())
    assert (scene.server.requests, delay) == (1, timedelta(seconds=1))
    scene.now += timedelta(seconds=1)
    again, _ = await scene.notifier.notify("ann", scene.notice(), again)
    assert (list(again), len(scene.server.received)) == ([], 1)


async def test_a_service_that_fails_for_an_hour_is_asked_rarely(scene: Scene) -> None:
    """Status 500 for an hour: growing pauses, then the notification comes, unless it is four hours old."""
    await scene.notifier.add("ann", scene.server.subscribe().facts(), "")
    scene.server.answers = [web.Response(status=500) for _ in range(100)]
    again, delay = await scene.notifier.notify("ann", scene.notice())
    while scene.now - START < timedelta(hours=1):
        scene.now += delay
        again, delay = await scene.notifier.notify("ann", scene.notice(), again)
    assert scene.server.requests <= 9
    scene.server.answers.clear()
    scene.now += delay
    await scene.notifier.notify("ann", scene.notice(), again)
    assert len(scene.server.received) == 1
    scene.now = START + FRESH
    assert await scene.notifier.notify("ann", scene.notice()) == ((), timedelta(0))
    assert len(scene.server.received) == 1


async def test_a_service_that_hangs_costs_one_deadline(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """All browsers of a person are tried side by side, so ten that hang take as long as one."""
    monkeypatch.setattr(push, "_SECONDS", 0.5)
    for n in range(MOST_BROWSERS):
        await scene.notifier.add("ann", scene.server.subscribe(str(n)).facts(), "")
    scene.server.hangs = True
    begin = asyncio.get_running_loop().time()
    again, _ = await scene.notifier.notify("ann", scene.notice())
    assert (len(again), scene.server.requests) == (MOST_BROWSERS, MOST_BROWSERS)
    assert asyncio.get_running_loop().time() - begin < 5
    _, delay = await scene.notifier.notify("ann", scene.notice())  # another answer meanwhile
    assert (scene.server.requests, delay) == (MOST_BROWSERS, timedelta(seconds=30))


async def test_a_large_reply_is_not_read(scene: Scene) -> None:
    """Ten megabytes after a status that says it all: the notification counts as sent, once."""
    await scene.notifier.add("ann", scene.server.subscribe().facts(), "")
    scene.server.answers = [web.Response(status=201, body=b"x" * 10_000_000)]
    again, _ = await scene.notifier.notify("ann", scene.notice())
    assert (list(again), scene.server.requests) == ([], 1)


async def test_a_redirect_inward_is_not_followed(scene: Scene) -> None:
    """The service names another address: nothing goes there, and nothing is tried again."""
    inside = scene.server.subscribe("inside")
    await scene.notifier.add("ann", scene.server.subscribe().facts(), "")
    scene.server.answers = [web.Response(status=307, headers={"Location": inside.endpoint})]
    again, _ = await scene.notifier.notify("ann", scene.notice())
    assert (list(again), scene.server.requests, scene.server.received) == ([], 1, [])


async def test_an_endpoint_that_leads_inward_is_never_called(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are refused when they are added; a name that resolves to one is refused by the socket, and removed."""
    monkeypatch.setattr(public_http, "is_public", lambda _: False)
    port = scene.server.address.rpartition(":")[2]
    for host in ("127.0.0.1", "[::1]", "169.254.169.254", "2130706433", "127.1", "[::ffff:10.0.0.1]"):
        browser = SubscribedBrowser(f"https://{host}:{port}/push/one")
        with pytest.raises(BadSubscription, match="public internet"):
            await scene.notifier.add("ann", browser.facts(), "")
    await scene.notifier.add("ann", scene.server.subscribe().facts(), "")
    await scene.notifier.notify("ann", scene.notice())
    assert (scene.server.requests, list(await scene.notifier.browsers("ann"))) == (0, [])


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "http://push.example/1"},
        {"endpoint": "https://push.example:22/1"},
        {"endpoint": "https://user@push.example/1"},
        {"endpoint": "file:///etc/passwd"},
        {"endpoint": "https://push.example/" + "x" * 1_000},
        {"endpoint": 1},
        {"name": "x" * 61},
        {"name": "a\nb"},
        {"shows_text": "yes"},
        {"keys": {"p256dh": "AAAA", "auth": "AAAA"}},
        {"keys": {"p256dh": "é", "auth": "AAAA"}},
        {"keys": []},
    ],
)
async def test_what_is_no_subscription_is_refused(scene: Scene, change: dict[str, object]) -> None:
    """Each part is checked before anything is stored."""
    facts = scene.server.subscribe().facts() | change
    with pytest.raises(BadSubscription):
        await scene.notifier.add("ann", json.loads(json.dumps(facts)), "")
    assert list(await scene.notifier.browsers("ann")) == []


async def test_a_person_has_ten_browsers_however_many_are_added_at_once(scene: Scene) -> None:
    """The limit is that of one note, which is changed by compare-and-set; one that is added again changes."""
    facts = [scene.server.subscribe(str(n)).facts() for n in range(300)]
    results = await asyncio.gather(*(scene.notifier.add("ann", each, "") for each in facts), return_exceptions=True)
    refused = [each for each in results if isinstance(each, TooManyBrowsers)]
    assert (len(refused), len(await scene.notifier.browsers("ann"))) == (290, MOST_BROWSERS)
    first = (await scene.notifier.browsers("ann"))[0]
    known = next(each for each in facts if each["endpoint"] == first.endpoint)
    await scene.notifier.add("ann", known | {"shows_text": True}, "")
    assert [each.shows_text for each in await scene.notifier.browsers("ann") if each.id == first.id] == [True]
    await scene.notifier.remove("ann", {first.id})
    await scene.notifier.add("ann", known, "")
    assert len(await scene.notifier.browsers("ann")) == MOST_BROWSERS
    assert list(await scene.notifier.browsers("bob")) == []


async def test_a_browser_that_is_told_again_changes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page tells it whenever it is opened; only a choice, another login or another key are written."""
    facts = [scene.server.subscribe(str(n)).facts() for n in range(2)]
    for each in facts:
        await scene.notifier.add("ann", each, "one")
    before = await scene.notifier.browsers("ann")
    with monkeypatch.context() as patch:
        patch.setattr(SqlChannelState, "replace", None)  # nothing is written
        scene.now += timedelta(days=1)
        for each in facts:
            await scene.notifier.add("ann", each, "one")
    await scene.notifier.add("ann", facts[0], "two")
    after = await scene.notifier.browsers("ann")
    assert [each.id for each in after] == [each.id for each in before]
    assert [(each.login, each.at) for each in after] == [("two", before[0].at), ("one", before[1].at)]


async def test_browsers_are_removed_with_a_login_and_with_their_person(scene: Scene) -> None:
    """A logout takes those of its login; an erasure all of a person, or of everybody, and of nobody else."""
    for who in ("ann", "ann.b"):
        for n, login in enumerate(("one", "two")):
            await scene.notifier.add(who, scene.server.subscribe(f"{who}{n}").facts(), login)
    await scene.notifier.remove_logins("ann", {"one"})
    assert [each.login for each in await scene.notifier.browsers("ann")] == ["two"]
    await scene.notifier.remove_all({"ann"})
    assert (len(await scene.notifier.browsers("ann")), len(await scene.notifier.browsers("ann.b"))) == (0, 2)
    await scene.notifier.remove_all(None)
    assert list(await scene.notifier.browsers("ann.b")) == []
