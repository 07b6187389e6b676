"""Chats of owners: settings name an owner without a team, and linked accounts are stored with theirs."""

from __future__ import annotations

from datetime import UTC, datetime

from channels.slack import SlackSettings
from channels.telegram import TelegramSettings
from gateway.access.access_control import AccessRoster
from gateway.access.pairing_service import OwnerAddress
from gateway.admission import policy_of
from gateway.app.access import OwnerChats
from gateway.app.chat_settings import build_scope_guess
from gateway.app.context import ChannelPlatforms
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.channel import PlatformTraits
from gateway.store.sql_store import SqlStore
from tests.fakes.store import open_inline_store

AT = datetime(2026, 11, 22, tzinfo=UTC)
PHONE = PlatformAccount(kind="telegram", id="42")
DESK = PlatformAccount(kind="slack", team="T1", id="U7")
PLATFORMS = ChannelPlatforms(
    {"telegram": "telegram", "slack": "slack"}, {"telegram": TelegramSettings.traits, "slack": SlackSettings.traits}
)


async def link(store: SqlStore, first: PlatformAccount, second: PlatformAccount) -> None:
    """Make two accounts one person."""
    source, target = f"people/{second.name}", f"people/{first.name}"
    await store.links.link(ScopeMove(id=f"link:{second.name}", kind="link", source=source, target=target, at=AT))


def owner_chats(store: SqlStore, *owners: str) -> OwnerChats:
    """Return the chats of owners that the settings name."""
    policies = {name: policy_of(name, (), owners, "mention") for name in PLATFORMS}
    roster = AccessRoster(store.access, policies, PLATFORMS, store.links, named_owners=owners)
    return OwnerChats(roster, store.records, store.links, PLATFORMS, PLATFORMS.keys())


async def test_an_owner_on_telegram_and_slack_is_one_person_whatever_their_team() -> None:
    """The settings name slack:U7; the link is stored as slack:T1:U7. A stranger to the links stays alone."""
    store = await open_inline_store()
    await link(store, PHONE, DESK)
    phone, service = OwnerAddress(SessionKey("telegram", "42")), OwnerAddress(SessionKey("slack", "U7"), "U7")
    other = OwnerAddress(SessionKey("slack", "U8"), "U8")
    for owners in (["slack:U7", "slack:U8", "telegram:42"], ["telegram:42", "slack:U8", "slack:U7"]):
        people = await owner_chats(store, *owners).everybody()
        assert {frozenset(addresses) for addresses in people} == {frozenset({phone, service}), frozenset({other})}
    await store.close()


async def test_an_owner_in_two_workspaces_is_one_person() -> None:
    """Neither account is named with its team, so that both links are found by the user alone."""
    store = await open_inline_store()
    await link(store, DESK, PlatformAccount(kind="slack", team="T2", id="U9"))
    people = await owner_chats(store, "slack:U7", "slack:U9").everybody()
    assert people == [tuple(OwnerAddress(SessionKey("slack", user), user) for user in ("U7", "U9"))]
    await store.close()


async def test_links_of_a_user_are_found_without_their_team() -> None:
    """With the team they are that workspace's alone; an id of another platform or workspace finds nothing."""
    store = await open_inline_store()
    await link(store, PHONE, DESK)
    assert set(owner_chats(store).roster.linked_accounts(DESK.user)) == {PHONE, DESK.user}
    assert set(owner_chats(store).roster.linked_accounts(DESK)) == {PHONE, DESK.user}
    assert set(owner_chats(store).roster.linked_accounts(PHONE)) == {PHONE, DESK.user}
    assert owner_chats(store).roster.linked_accounts(PlatformAccount(kind="slack", team="T2", id="U7")) == []
    assert owner_chats(store).roster.linked_accounts(PlatformAccount(kind="telegram", id="U7")) == []
    await store.close()


async def test_links_of_an_id_that_is_too_long_for_a_name_are_found() -> None:
    """The name of such an account is shortened, and its id cannot be read back from it."""
    store = await open_inline_store()
    long = PlatformAccount(kind="telegram", id="@" + "x" * 250)
    await link(store, PHONE, long)
    assert PHONE in owner_chats(store).roster.linked_accounts(long)
    await store.close()


async def test_an_account_read_from_a_shortened_name_keeps_that_name() -> None:
    """What is stored under the name of a very long id is found again, also by an account that was read back."""
    store = await open_inline_store()
    long = PlatformAccount(kind="telegram", id="@" + "x" * 250)
    stored = PlatformAccount.from_name(long.name)
    assert stored.name == long.name
    await link(store, PHONE, long)
    key = SessionKey("telegram", "9")
    await store.links.note_chat(key, long)
    assert store.links.person(stored) == store.links.person(long) == PHONE.name
    assert store.links.account_of(key) == stored
    await store.close()


async def test_a_direct_chat_without_messages_is_its_users_where_the_ids_are_the_same() -> None:
    """A chat is linked to a person by its id only where that is a user's id; where users have teams, in any team."""
    store = await open_inline_store()
    await link(store, PHONE, DESK)
    ann = f"people/{PHONE.name}"
    scopes = build_scope_guess("strict", store.links, PLATFORMS)
    assert scopes(SessionKey("telegram", "42")) == (ann, "chats/telegram%3a42")
    assert scopes(SessionKey("telegram", "-42/7")) == ("chats/telegram%3a-42%2f7", "chats/telegram%3a-42")
    assert scopes(SessionKey("slack", "U7")) == ("chats/slack%3a%557",)
    traits = PlatformTraits(chat_is_person=True, has_teams=True)
    scopes = build_scope_guess("strict", store.links, ChannelPlatforms({"slack": "slack"}, {"slack": traits}))
    assert scopes(SessionKey("slack", "U7")) == (ann, "chats/slack%3a%557")
    assert scopes(SessionKey("slack", "U8")) == ("chats/slack%3a%558",)
    assert build_scope_guess("shared", store.links, PLATFORMS)(SessionKey("slack", "U7")) == ("",)
    await store.close()
