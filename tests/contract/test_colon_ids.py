"""Ids that hold colons work wherever accounts do: names, settings, admission, owners' chats, links and erasure."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.scopes import ScopeSelector
from gateway.access.pairing_service import OwnerAddress
from gateway.admission import policy_of
from gateway.errors import SettingsError
from gateway.events import PlatformAccount, SessionKey
from gateway.operations.memory import MemoryOperations
from gateway.settings import InstalledPlugins, load_settings
from gateway.settings.channel_blocks import ChannelSettings
from tests.fakes.account_linking import CODE, settled
from tests.fakes.documents import stored_text
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.matrix import MatrixChannel, MatrixPlugin, MatrixSettings, room_id, user_id
from tests.fakes.staged_changes import FACT, memory, staged

ANN, BOB, CEM = (PlatformAccount(kind="matrix", id=user_id(name)) for name in ("ann", "bob", "cem"))
ROOM = "chats/matrix%3a%21room%3aexample.org"
IDS = st.text("aAzZ09@!%:._-", min_size=1, max_size=20)
KINDS = st.sampled_from(["matrix", "slack", "telegram"])


@asynccontextmanager
async def homeserver(*, entries: tuple[str, ...] = (), home: Path | None = None) -> AsyncIterator[InProcessGateway]:
    """Run a gateway on the platform; Ann owns the bot."""
    policy = policy_of("matrix", entries, (f"matrix:{ANN.id}",), "open")
    async with gateway(kind=MatrixPlugin(), model=InstantModel(), policy=policy, home=home) as parlour:
        yield parlour


def channel_of(parlour: InProcessGateway) -> MatrixChannel:
    """Return the running channel."""
    assert isinstance(parlour.channel, MatrixChannel)
    return parlour.channel


@given(kind=KINDS, team=IDS | st.just(""), user=IDS)
def test_an_account_is_read_back_from_its_text_and_its_name(kind: str, team: str, user: str) -> None:
    """Whatever colons and percent signs are in its team and id."""
    account = PlatformAccount(kind=kind, team=team, id=user)
    read = [PlatformAccount.parse(str(account)), PlatformAccount.from_name(account.name)]
    read.append(PlatformAccount.from_input(account.name, has_teams=lambda _: bool(team)))
    assert {astuple(each) for each in read} == {astuple(account)}  # `==` compares names


@given(first=st.tuples(KINDS, IDS | st.just(""), IDS), second=st.tuples(KINDS, IDS | st.just(""), IDS))
def test_two_accounts_never_share_a_name(first: tuple[str, str, str], second: tuple[str, str, str]) -> None:
    """A team with an id is never taken for an id with a colon."""
    accounts = [PlatformAccount(kind=kind, team=team, id=user) for kind, team, user in (first, second)]
    assert (accounts[0].name == accounts[1].name) is (first == second)


@pytest.mark.parametrize(
    ("account", "name"),
    [
        (PlatformAccount(kind="telegram", id="42"), "telegram%3a42"),
        (PlatformAccount(kind="slack", team="T1", id="U1"), "slack%3a%541%3a%551"),
        (PlatformAccount(kind="web", id="owner"), "web%3aowner"),
        (ANN, "matrix%3a%40ann%253aexample.org"),
    ],
    ids=str,
)
def test_names_of_existing_accounts_stay(account: PlatformAccount, name: str) -> None:
    """Ids without a colon have the folders that earlier releases gave them."""
    assert account.name == name
    assert PlatformAccount.from_name(name) == account


def test_an_account_read_from_a_shortened_name_is_the_account() -> None:
    """An id beyond 200 bytes cannot be read back from the name, yet who approves and links is compared with it."""
    account = PlatformAccount(kind="matrix", id=f"@{'a' * 240}:example.org")
    read = PlatformAccount.from_name(account.name)
    assert (read == account, read.id == account.id, {account: 1}[read]) == (True, False, 1)
    assert read != PlatformAccount(kind="matrix", id=f"@{'a' * 241}:example.org")


def test_people_type_colons_as_they_are() -> None:
    """Only a platform that has teams reads a team before the id."""
    assert PlatformAccount.from_input(ANN.label, has_teams=lambda _: False) == ANN
    slack = PlatformAccount.from_input("slack:T1:U1", has_teams=lambda kind: kind == "slack")
    assert slack == PlatformAccount(kind="slack", team="T1", id="U1")


@pytest.mark.parametrize("has_shapes", [True, False], ids=["own-shapes", "no-shapes"])
def test_settings_take_entries_with_colons(tmp_path: Path, has_shapes: bool) -> None:
    """allow_from names users and rooms, `chats` rooms; a handle without a server is refused."""
    installed = InstalledPlugins.installed()
    model = MatrixSettings if has_shapes else ChannelSettings
    installed = replace(installed, models={**installed.models, "matrix": lambda: model})
    environment = {"PARLOUR_HOME": str(tmp_path), "PARLOUR_OWNERS": ANN.label}
    entries = {"PARLOUR_CHANNELS__MATRIX__ALLOW_FROM": f"{BOB.id},chat:{room_id('room')}"}
    (tmp_path / "parlour.yaml").write_text(f"chats:\n  'matrix:{room_id('room')}':\n    group_policy: 'off'\n")
    settings = load_settings(environment | entries, installed)
    assert list(settings.chats) == [f"matrix:{room_id('room')}"]
    assert settings.channels["matrix"].allow_from == (BOB.id, f"chat:{room_id('room')}")
    policy = policy_of("matrix", settings.channels["matrix"].allow_from, settings.owners, "open")
    assert policy.owners == {ANN.id}
    with pytest.raises(SettingsError, match="is not a user id"):
        load_settings(environment | {"PARLOUR_CHANNELS__MATRIX__ALLOW_FROM": "@bob"}, installed)


async def test_each_has_their_own_folder_and_is_found_by_name() -> None:
    """A direct room is its user's memory, a group its own; the operator names them as the platform does."""
    async with homeserver(entries=(BOB.id,)) as parlour:
        channel = channel_of(parlour)
        await channel.write("ann", "/remember the zeppelin is red")
        await channel.write("bob", "/remember my boat is called Nora")
        await channel.write("bob", "hello all", room="room", is_addressed=True)
        await parlour.idle()
        for each in (ANN, BOB):
            await parlour.app.memory.jobs.settle(f"people/{each.name}")
        assert "zeppelin" in stored_text(parlour.home, f"people/{ANN.name}")
        assert "Nora" in stored_text(parlour.home, f"people/{BOB.name}")
        assert (parlour.home / ROOM / "sessions" / "matrix%3a%21room%3aexample.org.jsonl").exists()
        names = await MemoryOperations(parlour.app).names()
        for text in (BOB.label, BOB.id, f"people/{BOB.name}"):
            assert names.find(ScopeSelector(person=text)) == f"people/{BOB.name}"
        assert names.find(ScopeSelector(chat=f"matrix:{room_id('room')}")) == ROOM


async def test_a_job_lands_in_the_memory_of_who_is_behind_the_room() -> None:
    """The sender of a job is the room's user, read back from the scope."""
    async with homeserver() as parlour:
        channel = channel_of(parlour)
        await channel.write("ann", "hello")
        await parlour.app.submit(SessionKey("matrix", room_id("with-ann")), "time for a walk")
        await parlour.idle()
        assert [path.name for path in (parlour.home / "people").iterdir()] == [ANN.name]
        assert len(channel.posts[room_id("with-ann")]) == 2


async def test_owners_are_asked_in_their_own_room() -> None:
    """By id before they have written; in their direct room afterwards, not where others write."""
    async with homeserver(entries=(BOB.id,)) as parlour:
        channel, owner_of = channel_of(parlour), parlour.app.owner_chats
        assert await owner_of("matrix") == OwnerAddress(SessionKey("matrix", ANN.id), ANN.id)
        await channel.write("bob", "hello")
        await channel.write("ann", "hello")
        await channel.write("bob", "hello again")
        assert await owner_of("matrix") == OwnerAddress(SessionKey("matrix", room_id("with-ann")))
        assert await owner_of.everybody() == [(OwnerAddress(SessionKey("matrix", room_id("with-ann"))),)]


async def test_owners_let_people_in_and_shut_them_out_by_id() -> None:
    """/allow and /block take the id alone or behind the channel; a handle without a server is no id."""
    async with homeserver() as parlour:
        channel = channel_of(parlour)

        async def is_heard(name: str) -> bool:
            result, _ = await channel.say(room_id(f"with-{name}"), "hello", sender=user_id(name))
            return result.verdict.value == "accepted"

        assert not await is_heard("bob")
        await channel.write("ann", f"/allow {BOB.id}")
        assert await is_heard("bob")
        await channel.write("ann", f"/block {BOB.label}")
        assert not await is_heard("bob")
        assert BOB.id not in (await channel.write("ann", "/allow @bob"))
        await channel.write("ann", f"/allow chat:{room_id('room')}")
        assert {(each.who, each.standing.value) for each in parlour.app.roster.list_access()} == {
            (ANN.id, "owner"),
            (BOB.id, "blocked"),
            (f"chat:{room_id('room')}", "allowed"),
        }


async def test_two_accounts_are_linked_and_one_owner_owns_both() -> None:
    """Links show ids as the platform does; what is blocked for one account is blocked for the person."""
    async with homeserver(entries=(BOB.id, CEM.id)) as parlour:
        channel = channel_of(parlour)
        await channel.write("bob", "/remember my boat is called Nora")
        await channel.write("cem", "hello")
        found = CODE.search(await channel.write("cem", "/link"))
        assert found is not None
        assert CEM.label in await channel.write("bob", f"/link {found[1]}")
        await channel.write("bob", "/link yes")
        await channel.write("cem", "/link yes")
        await settled(parlour)
        links = parlour.app.store.links
        assert [each.account for each in links.accounts(links.person(CEM))] == [BOB, CEM]
        await channel.write("ann", f"/block {BOB.id}")
        result, _ = await channel.say(room_id("with-cem"), "hello?", sender=CEM.id)
        assert result.verdict.value != "accepted"


async def test_a_person_is_forgotten_everywhere(tmp_path: Path) -> None:
    """Their folder, their words in groups, their rows; another user's words stay, also one whose id ends alike."""
    async with homeserver(entries=("*",), home=tmp_path / "home") as parlour:
        channel = channel_of(parlour)
        await channel.write("bob", "/remember my boat is called Nora")
        await channel.write("bob", "the Nora sails", room="room", is_addressed=True)
        await channel.write("cem", "the kite flies", room="room", is_addressed=True)
        await channel.write("cem", "/remember my kite is blue")
        await parlour.idle()
        forget = parlour.app.operations["people forget"]
        (line,) = [line async for line in forget({"person": BOB.label})]
        home = shutil.copytree(parlour.home, tmp_path / "copy", ignore=shutil.ignore_patterns("control.sock", "lock"))
    assert line["chats"] == [ROOM]
    assert line["scopes"] == [f"people/{BOB.name}"]
    said = (home / ROOM / "sessions" / "matrix%3a%21room%3aexample.org.jsonl").read_text()
    assert "Nora" not in said
    assert BOB.id not in said
    assert "kite" in said
    assert not (home / "people" / BOB.name).exists()
    assert (home / "people" / CEM.name).exists()


async def test_an_approval_question_reaches_whose_memory_it_is(tmp_path: Path) -> None:
    """The question's sender is read back from the scope; their yes in the same room approves the change."""
    async with homeserver(entries=(BOB.id,), home=tmp_path / "home") as parlour:
        channel = channel_of(parlour)
        await channel.write("bob", "hello")
        scope, session = f"people/{BOB.name}", f"matrix:{room_id('with-bob')}"
        await staged(parlour, scope, session)
        await parlour.idle()
        (question,) = [post for post in channel.posts[room_id("with-bob")] if "/memory approve" in post.text]
        assert FACT in question.text
        assert (await channel.write("bob", "/memory approve eaaaaaaaaaaaaaaaa")).startswith("Approved.")
        assert FACT in memory(parlour, scope)
        assert [path.name for path in (parlour.home / "people").iterdir()] == [BOB.name]
