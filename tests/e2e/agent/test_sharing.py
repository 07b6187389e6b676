"""What everybody may know, and one memory for everything: said by owners alone, and never made public by a setting."""

from __future__ import annotations

from pathlib import Path

from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry
from tests.e2e.agent.test_consolidation import WINDOW, SummaryModel
from tests.fakes.account_linking import link, settled, unlink
from tests.fakes.documents import stored_changes
from tests.fakes.home_files import unknown_files
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

OFFICE = AdmissionPolicy(
    channel="pocket",
    entries=frozenset(
        {
            AllowEntry(AdmissionGrant.USER, "ann"),
            AllowEntry(AdmissionGrant.USER, "bob"),
            AllowEntry(AdmissionGrant.CHAT, "room"),
        }
    ),
    owners=frozenset({"ann"}),
)
SHARED = {**WINDOW, "PARLOUR_MEMORY__ISOLATION": "shared"}


async def say(parlour: InProcessGateway, account: str, text: str) -> str:
    """Say something in an account's direct chat."""
    return await parlour.channel.ask(account, text, sender=account)


async def test_what_the_owner_shares_is_in_every_prompt_and_what_is_taken_back_in_none() -> None:
    """A running conversation learns it as a note, a new one by its prompt; /unshare leaves no trace in either."""
    model = SummaryModel()
    async with gateway(model=model, policy=OFFICE, environment=WINDOW) as parlour:
        await say(parlour, "bob", "hello")
        before = str(model.prompts[-1][0])
        assert "all chats" in await say(parlour, "ann", "/share the office is closed on Fridays")
        await say(parlour, "bob", "when may I come?")
        assert str(model.prompts[-1][0]) == before  # the prompt's beginning stands
        assert "closed on Fridays" in str(model.prompts[-1])
        await parlour.channel.ask("room", "and I?", sender="bob", group=True, is_addressed=True)
        assert "closed on Fridays" in str(model.prompts[-1][0])
        await parlour.settle_documents()
        assert "closed on Fridays" in await say(parlour, "bob", "/memory shared")
        assert "closed on Fridays" in await say(parlour, "ann", "/unshare Fridays")
        assert "closed on Fridays" in await say(parlour, "bob", "/memory shared")  # only asked so far
        assert "Removed 1 line " in await say(parlour, "ann", await answer_to_unshare(parlour))
        await say(parlour, "bob", "tell me again")
        assert "closed on Fridays" not in str(model.prompts[-1])
        assert "no shared facts" in await say(parlour, "bob", "/memory shared")
        assert (parlour.home / "shared/memory").stat().st_mode & 0o777 == 0o700
        assert (parlour.home / "shared/memory/MEMORY.md").stat().st_mode & 0o777 == 0o600


async def answer_to_unshare(parlour: InProcessGateway, word: str = "approve") -> str:
    """Return the command that a button of the last question represents."""
    [asked] = await parlour.app.commands.staging.pending_changes("shared")
    return f"/unshare {word} {asked.name}"


async def test_unshare_matches_whole_words_and_asks() -> None:
    """The preview of /forget: no erases nothing, another sender cannot answer, a second answer changes nothing."""
    async with gateway(model=SummaryModel(), policy=OFFICE, environment=WINDOW) as parlour:
        await say(parlour, "ann", "/share the **team** drinks green tea")
        await say(parlour, "ann", "/share steak is served on Mondays")
        assert "nothing with these words" in await say(parlour, "ann", "/unshare eak")
        question = await say(parlour, "ann", "/unshare tea")
        assert "1 remembered line" in question
        assert "Mondays" not in question
        yes, no = await answer_to_unshare(parlour), await answer_to_unshare(parlour, "reject")
        assert yes in question
        assert no in question
        assert "Only an owner" in await say(parlour, "bob", yes)
        assert "Rejected" in await say(parlour, "ann", no)
        assert "already decided" in await say(parlour, "ann", yes)
        assert "green tea" in await say(parlour, "bob", "/memory shared")
        await say(parlour, "ann", "/unshare tea")
        assert "Removed 1 line " in await say(parlour, "ann", await answer_to_unshare(parlour))
        shown = await say(parlour, "bob", "/memory shared")
        assert "steak" in shown
        assert "green tea" not in shown
        await parlour.idle()
        assert unknown_files(parlour.home) == []


async def test_only_an_owner_shares() -> None:
    """Anybody else is told so in a line, and nothing is kept."""
    async with gateway(model=SummaryModel(), policy=OFFICE, environment=WINDOW) as parlour:
        for text in ("/share we close at noon", "/unshare noon"):
            assert "Only an owner" in await say(parlour, "bob", text)
        await parlour.idle()
        assert not (parlour.home / "shared").exists()


async def test_an_owners_linked_account_is_the_owners_and_no_longer_once_it_is_apart() -> None:
    """Roles are the person's: what the owner may, their other account may, until it is unlinked."""
    async with gateway(model=SummaryModel(), policy=OFFICE, environment=WINDOW) as parlour:
        assert "Only an owner" in await say(parlour, "bob", "/share one")
        await link(parlour, "ann", "bob")
        assert "all chats" in await say(parlour, "bob", "/share two")
        await say(parlour, "bob", "/timezone Europe/Berlin")
        assert "Europe/Berlin" in await say(parlour, "ann", "/timezone")
        await unlink(parlour, "ann")
        assert "Only an owner" in await say(parlour, "bob", "/share three")


async def test_one_memory_for_everything_stands_in_the_home_as_the_seeds_have_it() -> None:
    """`memory.isolation: shared`: MEMORY.md, sessions and versions at the root; chats and groups know it all."""
    model = SummaryModel()
    async with gateway(model=model, environment=SHARED) as parlour:
        await say(parlour, "ann", "/remember the zeppelin is red")
        await parlour.channel.ask("room", "what colour?", sender="ann", group=True)
        assert "zeppelin" in str(model.prompts[-1])
        await parlour.idle()
        await parlour.settle_documents()
        assert "zeppelin" in (parlour.home / "memory/MEMORY.md").read_text()
        assert {path.name for path in (parlour.home / "sessions").iterdir()} == {
            "pocket%3aann.jsonl",
            "pocket%3aroom.jsonl",
        }
        assert not (parlour.home / "people").exists()
        assert "Linking is not needed" in await say(parlour, "ann", "/link")


async def test_one_memory_becomes_the_owners_own_and_is_never_published(tmp_path: Path) -> None:
    """Back to strict: the root's memory, with its versions, is in the owner's scope, and in no group's prompt."""
    home, model = tmp_path / "home", SummaryModel()
    async with gateway(home=home, model=model, policy=OFFICE, environment=SHARED) as parlour:
        await say(parlour, "ann", "/remember the zeppelin is red")
        await parlour.channel.ask("room", "what colour?", sender="bob", group=True, is_addressed=True)
        await parlour.idle()
    for _ in range(2):  # a second start finds nothing to do
        async with gateway(home=home, model=model, policy=OFFICE, environment=WINDOW) as parlour:
            await settled(parlour)
            await parlour.channel.ask("room", "what colour is it?", sender="bob", group=True, is_addressed=True)
            assert "zeppelin" not in str(model.prompts[-1])
            await say(parlour, "ann", "and now?")
            assert "zeppelin" in str(model.prompts[-1])
            assert "saved on request" in await say(parlour, "ann", "/memory why zeppelin")
            assert not (home / "memory").exists()
            assert not (home / "sessions").exists()
    assert [each.by for each in stored_changes(home, "people/pocket%3aann")][-1] == "pocket%3aann"


async def test_strict_to_shared_reads_nobodys_own_memory(tmp_path: Path) -> None:
    """What was private stays where it is, unread; switched back, it is there again."""
    home, model = tmp_path / "home", SummaryModel()
    async with gateway(home=home, model=model, policy=OFFICE, environment=WINDOW) as parlour:
        await say(parlour, "bob", "/remember the boat is called Nora")
        await parlour.idle()
    async with gateway(home=home, model=model, policy=OFFICE, environment=SHARED) as parlour:
        await say(parlour, "ann", "what is it called?")
        await say(parlour, "bob", "what is it called?")
        assert "Nora" not in str(model.prompts[-1])
        await parlour.idle()
    async with gateway(home=home, model=model, policy=OFFICE, environment=WINDOW) as parlour:
        await say(parlour, "bob", "and now?")
        assert "Nora" in str(model.prompts[-1])
