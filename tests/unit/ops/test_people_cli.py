"""`parlour people …` and `parlour owner …`: with a gateway that runs and without one, in words and as JSON."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from gateway.admission import policy_of
from gateway.commands.init import offer_ownership
from gateway.commands.init_prompts import UnattendedPrompter
from gateway.events import PlatformAccount, SessionKey
from tests.fakes.inprocess_gateway import InstantModel, gateway
from tests.unit.ops.test_memory_cli import CommandTerminal
from tests.unit.ops.test_memory_cli import terminal as terminal

TOKEN = f"123456789:AA{'x' * 33}"


@pytest.fixture
def telegram(terminal: CommandTerminal, monkeypatch: pytest.MonkeyPatch) -> CommandTerminal:
    """A home with a Telegram block whose settings let one person in, and no gateway."""
    monkeypatch.setenv("PARLOUR_CHANNELS__TELEGRAM__TOKEN", TOKEN)
    monkeypatch.setenv("PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM", "7")
    terminal.make_home()
    return terminal


def test_without_a_gateway_the_home_answers(telegram: CommandTerminal) -> None:
    """Allowed, blocked, listed, audited and taken back under the home's lock; each command finds what the last did."""
    assert "telegram:42 may write" in telegram.well("people", "allow", "telegram:42")
    assert "already" in telegram.well("people", "allow", "telegram:42")
    telegram.well("people", "block", "telegram:666")
    telegram.well("people", "allow", "telegram:chat:-100")
    listed = telegram.lines("people", "list")
    assert [(each["who"], each["standing"], each["came_by"]) for each in listed] == [
        ("7", "allowed", "setting"),
        ("42", "allowed", "decision"),
        ("666", "blocked", "decision"),
        ("chat:-100", "allowed", "decision"),
    ]
    words = telegram.well("people", "list", "telegram")
    assert "telegram:666" in words
    assert "blocked by operator since " in words
    assert "allowed by the settings" in words
    telegram.well("people", "remove", "telegram:42")
    audit = telegram.lines("people", "audit", "--limit", "2")
    assert [(each["by"], each["what"], each["whom"]) for each in audit] == [
        ("operator", "remove", "telegram:42"),
        ("operator", "allow", "telegram:chat:-100"),
    ]
    assert "operator: block telegram:666: done" in telegram.well("people", "audit", "telegram:666")
    assert "no decisions by or about telegram:9" in telegram.well("people", "audit", "telegram:9")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("people", "allow", "nobody"), "write channel:user_id"),
        (("people", "allow", "telegram:*"), "is not an id"),
        (("people", "block", "telegram:ann"), "telegram:ann: 'ann' is not a user id of this platform"),
        (("people", "list", "telegrm"), "no channel is called telegrm; channels: console, telegram, web"),
        (("people", "remove", "telegram:7"), "is in the settings"),
        (("people", "remove", "telegram:8"), "no decision about telegram:8 exists"),
        (("people", "link", "telegram:1", "telegram:2"), "nothing is remembered of 'telegram:1'"),
        (("owner", "remove", "telegram:8"), "telegram:8 is not an owner"),
        (("web", "login", "--as", ""), "--as needs a name"),
        (("people", "forget", "nobody"), "'nobody' is not an account"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_mistakes_are_one_line_that_says_how_to_mend_them(
    telegram: CommandTerminal, words: tuple[str, ...], told: str
) -> None:
    """Each is told before anything is asked or done."""
    assert told in telegram.refused(*words)


def test_an_owner_is_claimed_once_and_listed(telegram: CommandTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A code while there is no owner; who stands in the settings is one, cannot be blocked, and is the only one."""
    issued = telegram.well("owner", "claim")
    code, said = issued.splitlines()
    assert len(code) == len("ABCD-EFGH")
    assert "in a direct message on telegram" in said
    assert "no owner is set" in telegram.well("owner", "list")
    monkeypatch.setenv("PARLOUR_OWNERS", "telegram:1")
    assert "an owner already exists: telegram:1" in telegram.refused("owner", "claim")
    assert "is listed in PARLOUR_OWNERS" in telegram.refused("people", "block", "telegram:1")
    assert "is listed in PARLOUR_OWNERS" in telegram.refused("owner", "remove", "telegram:1")
    assert "owner   by the settings" in telegram.well("owner", "list")


def test_init_ends_with_a_code_where_nobody_owns_the_bot(
    telegram: CommandTerminal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a platform and without an owner it prints what to send; with one it says nothing."""
    talk = UnattendedPrompter(keeps=False)
    offer_ownership(talk)
    assert "Send only this code to the bot" in capsys.readouterr().out
    monkeypatch.setenv("PARLOUR_OWNERS", "telegram:1")
    offer_ownership(talk)
    assert capsys.readouterr().out == ""


async def test_a_running_gateway_is_told_and_obeys_at_the_next_message(terminal: CommandTerminal) -> None:
    """Through the socket: a stranger is let in and shut out without a restart; a claimed owner is in doctor's line."""
    there, policy = asyncio.to_thread, policy_of("pocket", (), (), "mention")
    async with gateway(home=terminal.home, model=InstantModel(), policy=policy) as parlour:
        refused, _ = await parlour.channel.say("ann", "hello", sender="ann")
        assert refused.reason == "stranger"
        await there(terminal.well, "people", "allow", "pocket:ann")
        assert "hello" in await parlour.channel.ask("ann", "hello", sender="ann")
        await there(terminal.well, "people", "block", "pocket:ann")
        refused, _ = await parlour.channel.say("ann", "hello", sender="ann")
        assert refused.reason == "blocked"
        (claim,) = await there(terminal.lines, "owner", "claim")
        assert claim["running"]
        await parlour.channel.say("eve", claim["code"], sender="eve", name="Eve")
        (owner,) = await there(terminal.lines, "owner", "list")
        assert (owner["channel"], owner["who"], owner["came_by"], owner["name"]) == ("pocket", "eve", "code", "Eve")
        assert "pocket:eve is an owner" in await there(terminal.refused, "people", "block", "pocket:eve")
        _, out, _ = await there(terminal.run, "doctor", "--offline")
        assert "pocket:eve (by claim code)" in out
        assert "is forgotten" in await there(terminal.well, "people", "forget", "pocket:eve", "--yes")
        (owner,) = await there(terminal.lines, "owner", "list")
        assert (owner["who"], owner["name"]) == ("eve", "")
        (line,) = await there(terminal.lines, "people", "audit", "--limit", "1")
        assert (line["what"], line["whom"]) == ("forget", "pocket:eve")
        assert "no longer an owner" in await there(terminal.well, "owner", "remove", "pocket:eve")
        refused, _ = await parlour.channel.say("eve", "/people", sender="eve")
        assert refused.reason == "stranger"


async def test_a_link_to_the_page_has_a_code_in_it(terminal: CommandTerminal) -> None:
    """For the chat or the console, the owner or somebody by name; without a gateway there is no page to log in to."""
    there = asyncio.to_thread
    async with gateway(home=terminal.home, model=InstantModel()) as parlour:
        url = parlour.app.web.url
        chat = (await there(terminal.well, "open")).split()[-1]
        console = (await there(terminal.well, "open", "--console", "--as", "ann")).split()[-1]
    assert re.fullmatch(re.escape(url) + r"#code=[0-9A-Z]{4}-[0-9A-Z]{4}", chat)
    assert re.fullmatch(re.escape(url) + r"console#code=[0-9A-Z]{4}-[0-9A-Z]{4}", console)
    assert "no gateway is running" in await there(terminal.refused, "open")
    assert "--as needs a name" in await there(terminal.refused, "open", "--as", "")


async def test_the_operator_makes_two_accounts_one_person(terminal: CommandTerminal, tmp_path: Path) -> None:
    """Without a gateway at once, with one as a job; nobody is asked, memory is one, and the audit has a line."""
    there = asyncio.to_thread
    async with gateway(home=terminal.home, model=InstantModel()) as parlour:
        for who in ("ann", "bob", "cleo"):
            await parlour.channel.ask(who, f"/remember {who} sails", sender=who)
        await parlour.idle()
        said = await there(terminal.well, "people", "link", "pocket:ann", "pocket:bob")
        assert "are now one person" in said
        shown = await parlour.channel.ask("bob", "/memory", sender="bob")
        assert "ann sails" in shown
        assert "are already one person" in await there(terminal.refused, "people", "link", "pocket:ann", "pocket:bob")
        await parlour.idle()
    assert "are now one person" in await there(terminal.well, "people", "link", "pocket:cleo", "pocket:ann")
    audit = await there(terminal.lines, "people", "audit")
    assert [(each["what"], each["whom"]) for each in audit] == [
        ("link", "pocket:cleo pocket:ann"),
        ("link", "pocket:ann pocket:bob"),
    ]
    async with gateway(home=terminal.home, model=InstantModel()) as parlour:
        shown = await parlour.channel.ask("cleo", "/memory", sender="cleo")
        assert "bob sails" in shown
        assert (
            len({parlour.app.store.links.person(PlatformAccount(kind="pocket", id=each)) for each in ("bob", "cleo")})
            == 1
        )
        assert SessionKey("pocket", "cleo").chat == "cleo"
