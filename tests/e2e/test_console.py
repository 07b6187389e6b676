"""The console in a real browser before the whole gateway: what an owner sees and decides, by mouse and by keys."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, ViewportSize, expect

from agent.base.scopes import chat_scope
from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import DO, Reminder
from agent.tasks.task import Task, TaskState
from channels.web.adapter import WebChannel
from channels.web.logins import LoginOutcome
from gateway.errors import UserError
from gateway.events import ChatKind, SessionKey
from gateway.logs import recent_lines
from gateway.operations.machine import MachineOperations
from gateway.operations.setup import SetupOperations
from gateway.store.alerts import Alert, NotificationState
from gateway.store.inspection import TurnQuery
from tests.e2e.browser import open_page, take_picture, take_pictures
from tests.e2e.test_page_axe import AXE, TAGS
from tests.fakes.console_people import ConsolePeople, console_people
from tests.fakes.hostile_mcp import hostile_server, tool

pytestmark = pytest.mark.asyncio(loop_scope="session")

RUN_AXE = """async (tags) => {
    const { violations } = await axe.run(document, { runOnly: tags, resultTypes: ["violations"] });
    return violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.target} ${node.html}`));
}"""
WIDE, PHONE = ViewportSize(width=1100, height=760), ViewportSize(width=360, height=740)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def people() -> AsyncIterator[ConsolePeople]:
    """Run a gateway with people of every role."""
    async with console_people() as people:
        yield people


async def visit(
    browser: Browser, people: ConsolePeople, view: str = "", who: str = "", script: Path | None = None, **context: Any
) -> Page:
    """Log in to the console as *who*, and open a view; an error on the page fails the test."""
    page = await open_page(browser, script=script, **{"viewport": WIDE, **context})
    channel = people.up.app.channels["web"]
    assert isinstance(channel, WebChannel)
    await page.goto(f"{people.url}console")
    await page.get_by_label("Code", exact=True).fill(await channel.issue_code(who))
    await page.keyboard.press("Enter")
    await expect(page.locator("#view h2")).to_be_visible()
    if view:
        await page.goto(f"{people.url}console#{view}")
    return page


async def test_the_overview_says_what_the_gateway_does(chromium: Browser, people: ConsolePeople) -> None:
    """Figures, channels and the version; light and wide, dark and on a phone, nothing wider than the window."""
    page = await visit(chromium, people)
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    channels = page.get_by_role("table", name="Channels")
    await expect(channels.get_by_role("row", name="pocket")).to_contain_text("connected")
    await expect(page.locator("dt", has_text="Waiting messages").locator("+ dd")).to_have_text("0")
    await expect(page.locator("dt", has_text="Cost today").locator("+ dd")).to_contain_text("4 model calls")
    await expect(page.locator(".verdict")).to_be_visible()
    await expect(page.locator("dt", has_text="Answers").locator("+ dd svg rect")).to_have_count(24)
    await take_pictures(page, "console-overview")
    phone = await visit(chromium, people, viewport=PHONE, color_scheme="dark")
    await expect(phone.get_by_role("heading", name="Channels")).to_be_visible()
    await take_picture(phone, "console-overview-phone-dark")


async def test_the_overview_shows_alerts_open_and_over(chromium: Browser) -> None:
    """A trouble that lasts comes with its sentence and whether owners were told; one that is over says so."""
    async with console_people() as people:
        store, now = people.up.app.store.alerts, datetime.now(UTC)
        told = NotificationState(stage=1, at=now, told=1)
        await store.save(Alert(cause="model", stage=1, since=now, line="alerts.model_failing", owners=told), at=now)
        gone = Alert(cause="channel.x", since=now, line="alerts.channel_down", fields={"channel": "x"})
        await store.save(gone, at=now)
        page = await visit(chromium, people)
        alerts = page.get_by_role("table", name="Alerts")
        failing = alerts.get_by_role("row", name="No model has answered since")
        await expect(failing).to_contain_text("open")
        await expect(failing).to_contain_text("told")
        await expect(alerts.get_by_role("row").filter(has_text="over")).to_have_count(1)


async def test_who_asks_is_approved_and_who_may_write_is_blocked(chromium: Browser, people: ConsolePeople) -> None:
    """With keys alone; blocking asks first; what was decided is said, listed and stands in the audit."""
    page = await visit(chromium, people, "people")
    await page.get_by_label("Account, chat, guild, team or role").fill("pocket:dora")
    await page.keyboard.press("Enter")
    listed = page.get_by_role("table", name="Accounts and chats with a decision")
    dora = listed.get_by_role("row", name="pocket:dora")
    await expect(dora).to_contain_text("may write")
    await expect(page.locator("#spoken")).to_have_text("pocket:dora may write")
    block = page.get_by_role("button", name="Block pocket:dora")
    await block.press("Enter")
    await expect(page.locator("#question-text")).to_contain_text("Block pocket:dora?")
    await page.keyboard.press("Escape")
    await expect(page.locator("#question")).to_be_hidden()
    await expect(dora).to_contain_text("may write")
    await block.press("Enter")
    await page.keyboard.press("Enter")
    await expect(dora).to_contain_text("blocked")
    audit = page.get_by_role("table", name="Decisions, the newest first")
    await expect(audit.get_by_role("row").nth(1)).to_contain_text("web:ownerblockpocket:doradone")
    await page.get_by_label("Account, chat, guild, team or role").fill("@dora")
    await page.keyboard.press("Enter")
    await expect(page.locator("#problem")).to_contain_text("does not name a channel")
    phone = await visit(chromium, people, "people", viewport=PHONE, color_scheme="dark")
    await expect(phone.get_by_role("table", name="Accounts and chats with a decision")).to_be_visible()
    await take_pictures(phone, "console-people")


async def test_an_owner_pins_a_service_and_lets_its_tools_be_used(chromium: Browser, people: ConsolePeople) -> None:
    """Their texts stand there as text; a button says what they may do, and a server is forgotten after a yes."""
    async with hostile_server() as server:
        server.tools = [tool("make", "<b>Act</b> at once."), tool("search", "Look.")]
        await people.up.app.mcp.add("tracker", server.url, is_private=True)
        page = await visit(chromium, people, "services")
        listed = page.get_by_role("table", name="Servers that are pinned")
        await expect(listed.get_by_role("row", name="tracker")).to_contain_text("0 of 2")
        await listed.get_by_role("link", name="tracker").click()
        tools = page.get_by_role("table", name="Tools as they were pinned")
        act = tools.get_by_role("row", name="make")
        await expect(act).to_contain_text("<b>Act</b> at once.")
        await page.get_by_role("button", name="Let it read: search").click()
        await expect(tools.get_by_role("row", name="search")).to_contain_text("reads")
        await page.get_by_role("button", name="Let it act: make").click()
        await expect(act).to_contain_text("acts, and asks")
        server.tools = [tool("make", "Act twice."), tool("search", "Look.")]
        await page.get_by_role("button", name="Compare with the server").click()
        await expect(page.locator("#question-text")).to_contain_text("make is changed")
        await page.keyboard.press("Enter")
        await expect(act).to_contain_text("Act twice.")
        await expect(act).to_contain_text("off")
        await take_pictures(page, "console-services")
        row = {"at": "2026-11-22T09:00:00+00:00", "sealed": "", "is_over": True}
        await people.up.app.store.state("mcp/").save("login/tracker/pocket%3aann", json.dumps(row))
        await page.get_by_role("link", name="All servers").click()
        there = page.get_by_role("table", name="People who have signed in to servers")
        await expect(there.get_by_role("row", name="pocket:ann")).to_contain_text("has to sign in again")
        await page.get_by_role("button", name="Sign out: pocket:ann, tracker").click()
        await expect(page.get_by_text("Nobody has signed in.")).to_be_visible()
        await page.get_by_role("link", name="tracker").click()
        await page.get_by_role("button", name="Forget").click()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("No server is pinned.")).to_be_visible()
        await page.get_by_label("Name", exact=True).fill("inward")
        await page.get_by_label("Address").fill(server.url)
        await page.keyboard.press("Enter")
        await expect(page.locator("#problem")).to_contain_text("not on the public internet")


async def test_people_who_are_logged_in_to_the_page_are_listed(chromium: Browser) -> None:
    """Each with the number of browsers and the end of the login; a name leads to the person, a logout ends the row."""
    async with console_people() as people:
        page = await visit(chromium, people, "people")
        channel = people.up.app.channels["web"]
        assert isinstance(channel, WebChannel)
        there = page.get_by_role("table", name="People of the page")
        await expect(there.get_by_role("row")).to_have_count(5)  # with the heading
        for who, browsers in (("owner", "2"), ("ann", "1"), ("eve", "1"), ("bob", "1")):
            row = there.get_by_role("row", name=f"web:{who}")
            role = "owner" if who == "owner" else "member"
            await expect(row.get_by_role("cell")).to_contain_text([role, browsers])
            await expect(row.locator("time")).to_have_count(1)
        await there.get_by_role("link", name="web:bob").click()
        await expect(page.get_by_role("region", name="Role and access")).to_be_visible()
        await expect(page.locator("#view code").first).to_have_text("web:bob")
        await page.goto(f"{people.url}console#people")
        await there.get_by_role("button", name="Log out bob").click()
        await page.get_by_role("dialog").get_by_role("button", name="Log out").click()
        await expect(there.get_by_role("row")).to_have_count(4)
        # The invitation is shown once, and lets one browser in as that person.
        await page.get_by_label("Name of a person").fill("zoe")
        await page.get_by_role("form", name="Invite to the page").get_by_role("button").click()
        shown = page.get_by_role("status").locator("code")
        await expect(shown).to_contain_text("-")
        code = (await shown.inner_text()).split()[0]
        await page.get_by_role("button", name="Show the list anew").click()
        await expect(there.get_by_role("row", name="web:zoe").locator("time")).to_have_count(1)
        assert (await channel.logins.enter(code))[0] is LoginOutcome.WELCOME
        assert (await channel.logins.enter(code))[0] is LoginOutcome.WRONG


async def test_a_pairing_request_is_approved(chromium: Browser) -> None:
    """A person who was given a code by the bot waits here, and may write once an owner has pressed Approve."""
    environment = {"PARLOUR_CHANNELS__TELEGRAM__ENABLED": "false"}
    async with console_people(environment=environment) as people:
        found = [line async for line in people.up.app.operations["people pending"]({})]
        assert found == []
        accepted, _ = await people.up.channel.say("frank", "hello", sender="frank", name="<b>Frank</b>")
        assert accepted.reason
        page = await visit(chromium, people, "people")
        waiting = page.get_by_role("table", name="People and chats that ask for access")
        await expect(waiting.get_by_role("row", name="pocket:frank")).to_contain_text("b Frank")
        await page.get_by_role("button", name="Approve pocket:frank").click()
        await expect(page.locator("#spoken")).to_have_text("pocket:frank may write")
        assert "answer to" in await people.up.channel.ask("frank", "hello again", sender="frank")


async def test_a_turn_is_found_and_tells_its_story(chromium: Browser, people: ConsolePeople) -> None:
    """By person and by reference: all nine stages, the call, the delivery; the words of a direct chat stay there."""
    page = await visit(chromium, people, "turns", color_scheme="dark")
    found = page.get_by_role("table", name="Turns, the newest first")
    await expect(found.get_by_role("row")).to_have_count(5)
    await take_pictures(page, "console-turns")
    await page.get_by_label("Person").fill("pocket:ann")
    await page.keyboard.press("Enter")
    await expect(found.get_by_role("row")).to_have_count(3)
    await found.get_by_role("row", name="pocket:room").get_by_role("link").click()
    stages = page.get_by_role("table", name="Stages of the turn")
    names = ["receive, parse, admit, accept", "queue", "claim", "assemble", "think", "commit", "deliver"]
    await expect(stages.get_by_role("rowheader")).to_have_text(names)
    await expect(page.get_by_role("table", name="Model calls, in order")).to_contain_text("instant")
    await expect(page.get_by_role("table", name="Parts of the answer").get_by_role("row")).to_have_count(2)
    await expect(page.locator(".said pre").first).to_have_text("said in the room")
    await take_pictures(page, "console-turn")
    await page.get_by_role("button", name="Show the prompt").click()
    prompt = page.get_by_role("region", name="Prompt").locator("li")
    await expect(prompt).to_have_count(2)
    await expect(prompt.first).to_contain_text("system")
    await expect(prompt.last).to_contain_text("said in the room")
    await page.goto(f"{people.url}console#turns/?chat=pocket:ann")
    reference = await found.get_by_role("link").inner_text()
    await page.get_by_label("Reference").fill(reference)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("only they read it")).to_be_visible()
    assert "a secret of ann" not in await page.content()
    await expect(page.get_by_role("button", name="Show the prompt")).to_have_count(0)
    status, body = await people.call("owner", "turns prompt", reference=reference)
    assert (status, "only they read it" in body, "a secret of ann" in body) == (400, True, False)
    await page.goto(f"{people.url}console#turns/t0000000")
    await expect(page.get_by_role("alert")).to_contain_text("no turn starts with")
    entries = await people.up.app.store.access.audit(limit=20)
    assert ("web:owner", "console turns show", reference) in {(each.by, each.what, each.whom) for each in entries}


async def test_tasks_are_listed_and_one_is_stopped_after_a_question(chromium: Browser, people: ConsolePeople) -> None:
    """Who, what, since when, steps and cost, by keys; what was asked for in a direct chat is not shown."""
    jobs, now = people.up.app.store.jobs, people.up.app.now()
    hostile = "compare the <b>ferries</b> to Bergen"
    room = Task(
        id="kaaaaaaaa",
        key=SessionKey("pocket", "room"),
        by="ann",
        person="pocket%3aann",
        goal=hostile,
        set_at=now,
        started_at=now,
        chat_kind=ChatKind.GROUP,
        state=TaskState.RUNNING,
        model_calls=3,
        tokens=4_321,
        dollars=0.0123,
    )
    direct = replace(room, id="kbbbbbbbb", key=SessionKey("pocket", "eve"), goal="a secret of eve", by="eve")
    direct = replace(direct, person="pocket%3aeve", chat_kind=ChatKind.DIRECT)
    request = Reminder(
        id="raaaaaaaa",
        key=room.key,
        by="ann",
        person="pocket%3aann",
        kind=DO,
        text="what is new?",
        at=slot_of(now + timedelta(days=2), "UTC"),
        zone="UTC",
        repeat="FREQ=DAILY",
        set_at=now,
        source="t.1",
        chat_kind=ChatKind.GROUP,
    )
    far = now + timedelta(days=400)  # no step is due
    await jobs.put(replace(room.to_job(chat_scope(room.key)), due_at=far))
    await jobs.put(replace(direct.to_job("people/pocket%3aeve"), due_at=far))
    await jobs.put(request.to_job(chat_scope(room.key)))
    page = await visit(chromium, people, "tasks", color_scheme="dark", script=AXE)
    listed = page.get_by_role("table", name="Tasks, those that run first")
    row = listed.get_by_role("row").filter(has_text="Bergen")
    for words in (hostile, "pocket:ann", "background task", "running", "3", "4,321 tokens, $0.0123"):
        await expect(row).to_contain_text(words)
    await expect(listed.get_by_role("row").filter(has_text="pocket:eve")).to_contain_text("in a direct chat")
    assert "a secret of eve" not in await page.content()
    assert await page.evaluate(RUN_AXE, TAGS) == []
    await take_pictures(page, "console-tasks")
    stop = page.get_by_role("button", name="Stop kaaaaaaaa")
    await stop.press("Enter")
    await expect(page.locator("#question-text")).to_contain_text(hostile)
    await page.keyboard.press("Escape")
    await expect(row).to_contain_text("running")
    await stop.press("Enter")
    await page.keyboard.press("Enter")
    await expect(row).to_contain_text("cancelled")
    await expect(stop).to_have_count(0)
    await page.get_by_role("link", name="Runs of raaaaaaaa").click()
    await expect(page.get_by_text("It has not run in the last 30 days.")).to_be_visible()
    entries = await people.up.app.store.access.audit(limit=20)
    assert ("web:owner", "console tasks stop", "kaaaaaaaa") in {(each.by, each.what, each.whom) for each in entries}
    # An admin sees those of their chat, and stops no other.
    phone = await visit(chromium, people, "tasks", who="ann", viewport=PHONE, script=AXE)
    await expect(phone.get_by_role("table").get_by_role("row")).to_have_count(3)
    await expect(phone.get_by_text(hostile)).to_be_visible()
    assert await phone.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert await phone.evaluate(RUN_AXE, TAGS) == []
    for role in ("admin of the chat", "admin of another chat"):
        chat = "pocket:room" if role == "admin of the chat" else "pocket:other"
        assert (await people.call(role, "tasks stop", id="kbbbbbbbb", chat=chat))[0] == 400
        assert (await people.call(role, "tasks stop", id="kbbbbbbbb"))[0] == 403
    assert (await people.call("admin of another chat", "tasks runs", id="raaaaaaaa", chat="pocket:other"))[0] == 400


async def test_an_admin_reads_the_turns_of_their_chat_alone(chromium: Browser, people: ConsolePeople) -> None:
    """On a phone: no view of an owner's, no turn of another chat, not even by its reference."""
    page = await visit(chromium, people, who="ann", viewport=PHONE)
    await expect(page.locator("#views a")).to_have_text(["Turns", "Tasks", "Chats"])
    found = page.get_by_role("table", name="Turns, the newest first")
    await expect(found.get_by_role("row")).to_have_count(2)
    await found.get_by_role("link").click()
    await expect(page.locator(".said pre").first).to_have_text("said in the room")
    await take_picture(page, "console-turn-of-an-admin")
    others = [
        each.turn for each in await people.up.app.store.journal.find_turns(TurnQuery()) if each.key.chat == "other"
    ]
    for arguments in (
        {"reference": others[0], "chat": "pocket:room"},
        {"reference": others[0], "chat": "pocket:other"},
    ):
        for name in ("turns show", "turns prompt"):
            status, body = await people.call("admin of the chat", name, **arguments)
            assert status in (400, 403)
            assert "said in" not in body


async def test_settings_memory_and_its_versions_of_a_shared_chat(chromium: Browser, people: ConsolePeople) -> None:
    """Each setting with its origin and its line; a change of the memory with its difference; direct chats stay shut."""
    document = people.up.home / "chats" / "pocket%3aroom" / "memory" / "MEMORY.md"
    document.parent.mkdir(exist_ok=True)
    document.write_text("- the roses need water\n", encoding="utf-8")
    page = await visit(chromium, people, "chats", who="ann")
    await page.get_by_role("link", name="pocket:room", exact=True).click()
    settings = page.get_by_role("table", name="Settings in force")
    await expect(settings.get_by_role("row", name="memory_window")).to_contain_text("the whole installation")
    await expect(settings.get_by_role("row", name="group_policy")).to_contain_text('{group_policy: "mention"}')
    await expect(page.get_by_role("region", name="MEMORY.md")).to_contain_text("the roses need water")
    versions = page.get_by_role("table", name="Changes of the memory, the newest first")
    await versions.get_by_role("link").first.click()
    await expect(page.locator(".diff .added")).to_contain_text(["the roses need water"])
    await take_pictures(page, "console-memory")
    owner = await visit(chromium, people, "chats/?chat=pocket:ann")
    await expect(owner.get_by_role("table", name="Settings in force")).to_be_visible()
    await expect(owner.get_by_text("the memory of shared chats only")).to_be_visible()
    for name in ("memory show", "memory log", "chats settings"):
        assert (await people.call("admin of another chat", name, chat="pocket:room"))[0] == 403
        assert (await people.call("admin of the chat", name, chat="pocket:room", scope="people/pocket%3aeve"))[0] == 400


async def test_usage_is_drawn_and_written_down(chromium: Browser, people: ConsolePeople) -> None:
    """By day at first, then by model of a year; a bar for each person."""
    page = await visit(chromium, people, "usage")
    await expect(page.get_by_role("table", name="Usage by day").get_by_role("row")).to_have_count(2)
    await page.get_by_label("By", exact=True).select_option("model")
    await page.get_by_label("The last").select_option("365d")
    await page.get_by_role("button", name="Show").press("Enter")
    await expect(page.get_by_role("table", name="Usage by model").get_by_role("row").nth(1)).to_contain_text("instant4")
    await page.goto(f"{people.url}console#usage/?by=person")
    await expect(page.locator(".chart rect")).to_have_count(2)
    await take_pictures(page, "console-usage")


async def test_the_doctor_s_findings_come_with_the_line_to_paste(
    chromium: Browser, people: ConsolePeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors first, and a button copies the line; checks that take too long are ended, and said to be."""
    monkeypatch.setenv("PARLOUR_WEB__PORT", people.url.rstrip("/").rpartition(":")[2])
    page = await visit(chromium, people, "doctor", permissions=["clipboard-read", "clipboard-write"])
    await page.get_by_role("button", name="Check this machine only").press("Enter")
    findings = page.get_by_role("table", name="Findings, the errors first")
    await expect(findings.get_by_role("row", name=re.compile("^model "))).to_contain_text("warning", timeout=60_000)
    await findings.get_by_role("button", name="Copy PARLOUR_LLM__MODEL").press("Enter")
    await expect(page.locator("#spoken")).to_have_text("copied: PARLOUR_LLM__MODEL")
    assert await page.evaluate("navigator.clipboard.readText()") == "PARLOUR_LLM__MODEL"
    await take_pictures(page, "console-doctor")
    hurried = MachineOperations(people.up.app, check_within=0.0)
    with pytest.raises(UserError, match="took more than 0 s"):
        _ = [line async for line in hurried.doctor(offline=True)]


async def test_a_backup_is_written_checked_and_found_to_be_damaged(chromium: Browser, people: ConsolePeople) -> None:
    """It stands in the list with the command that restores it; one changed byte is found; no other name is opened."""
    page = await visit(chromium, people, "backups")
    await page.get_by_role("button", name="Write a backup").press("Enter")
    row = page.get_by_role("table", name="Backups, the newest first").get_by_role("row").nth(1)
    await expect(row).to_contain_text("parlour restore /", timeout=60_000)
    await row.get_by_role("button").press("Enter")
    await expect(row).to_contain_text("files are whole", timeout=60_000)
    await take_pictures(page, "console-backups")
    archive = people.up.home / "backups" / await row.get_by_role("rowheader").inner_text()
    damaged = bytearray(archive.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    archive.write_bytes(damaged)
    await row.get_by_role("button").press("Enter")
    await expect(row).to_contain_text("use another backup", timeout=60_000)
    assert not list(archive.parent.glob(".verifying-*"))
    (archive.parent / "link.tar.gz").symlink_to("/etc/passwd")
    verify = MachineOperations(people.up.app).verify_backup
    for name in ("../journal.db", "link.tar.gz", ".tar.gz", ""):
        with pytest.raises(UserError, match="there is no backup"):
            _ = [line async for line in verify(name)]
    entries = {(each.what, each.whom) for each in await people.up.app.store.access.audit(limit=20)}
    assert {("console backups create", ""), ("console backups verify", archive.name)} <= entries


async def test_what_the_setup_refuses_is_not_saved(people: ConsolePeople) -> None:
    """Another platform, other questions, lines that are none; and a gateway of another program is not stopped."""
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"platform": "icq", "answers": {}}, "is not a platform"),
        ({"platform": "telegram", "answers": {"webhook_url": "https://evil.example"}}, "answers must be an object"),
        ({"platform": "telegram", "answers": {"token": "1:A\n2"}}, "one line"),
        ({"platform": "telegram", "answers": {"token": "x" * 4_001}}, "at most 4000 characters"),
        ({"platform": "telegram", "answers": {"token": ""}}, "is required"),
        ({"platform": "telegram", "answers": {"token": "no-token-canary"}}, "Nothing was saved"),
    )
    for arguments, error in refused:
        status, body = await people.call("owner", "setup platform", **arguments)
        assert (status, error in body, "canary" in body) == (400, True, False), body
    for arguments, error in (({"model": ""}, "name the model"), ({"model": "ofline"}, "Nothing was saved")):
        status, body = await people.call("owner", "setup model", **arguments)
        assert (status, error in body) == (400, True), body
    assert "started by another program" in (await people.call("owner", "setup restart"))[1]
    assert not list(people.up.home.glob("parlour.yaml")) + list(people.up.home.glob("secrets"))


async def test_a_setting_of_a_chat_is_shown_as_its_line_and_saved(chromium: Browser, people: ConsolePeople) -> None:
    """The rest of the file stays as it is and out of sight; a bad value is said and nothing written; it is audited."""
    file = people.up.home / "parlour.yaml"
    before = "# mine\nllm:\n  api_key: sk-canary-beside-the-line-0123456789  # kept\n"
    file.write_text(before, encoding="utf-8")
    try:
        page = await visit(chromium, people, "chats/?chat=web:owner")
        form = page.get_by_role("form", name="Change a setting of this chat")
        await form.get_by_label("Setting").fill("language")
        await form.get_by_label("Value").fill("klingon")
        await page.keyboard.press("Enter")
        await expect(page.locator("#problem")).to_contain_text("klingon")
        await form.get_by_label("Value").fill("de")
        await page.keyboard.press("Enter")
        lines = page.get_by_role("region", name="Lines of the settings file")
        await expect(lines).to_have_text("+chats:\n+  web:owner:\n+    language: de\n")
        await take_pictures(page, "console-chat")
        assert file.read_text(encoding="utf-8") == before
        await page.get_by_role("button", name="Save these lines").press("Enter")
        await expect(page.get_by_text("It is used after a restart")).to_be_visible()
        assert file.read_text(encoding="utf-8") == f"{before}chats:\n  web:owner:\n    language: de\n"
        for name, value in (("soul", "people/ann/MEMORY.md"), ("allow_from", "*"), ("model", "")):
            with pytest.raises(UserError):
                _ = [each async for each in SetupOperations(people.up.app).change_chat("web:owner", name, value)]
        await form.get_by_label("Value").fill("")
        await page.keyboard.press("Enter")
        await expect(lines).to_have_text("-chats:\n-  web:owner:\n-    language: de\n")
        await page.get_by_role("button", name="Save these lines").press("Enter")
        await expect(page.get_by_text("It is used after a restart")).to_be_visible()
        assert file.read_text(encoding="utf-8") == before
        entries = {(each.what, each.whom) for each in await people.up.app.store.access.audit(limit=20)}
        assert ("console chats change", "web:owner") in entries
    finally:
        file.unlink()


async def test_a_setting_of_a_chat_is_inherited_again(chromium: Browser, tmp_path: Path) -> None:
    """One button at what this chat sets itself shows the line that goes; comments and the other lines stay."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    text = "chats:\n  # the room\n  'pocket:room':\n    language: de  # theirs\n    memory_window: 50\n"
    (home / "parlour.yaml").write_text(text, encoding="utf-8")
    async with console_people(home) as people:
        page = await visit(chromium, people, "chats/?chat=pocket:room")
        await expect(page.get_by_role("button", name="Inherit")).to_have_count(2)
        await page.get_by_role("button", name="Inherit language").press("Enter")
        lines = page.get_by_role("region", name="Lines of the settings file")
        await expect(lines).to_have_text("-    language: de  # theirs\n")
        await expect(page.get_by_role("button", name="Save these lines")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("It is used after a restart")).to_be_visible()
        assert (home / "parlour.yaml").read_text(encoding="utf-8") == text.replace("    language: de  # theirs\n", "")


async def test_the_log_is_followed_and_filtered(chromium: Browser, people: ConsolePeople) -> None:
    """By level, component and reference; a new line appears by itself, redacted, and as text."""
    page = await visit(chromium, people, "logs")
    warning = {"level": "warning", "logger": "channels.telegram.api", "timestamp": "2026-11-24T17:00:00Z"}
    recent_lines(None, "", {**warning, "event": "telegram.<b>slow</b>", "reference": "tabc"})
    recent_lines(None, "", {**warning, "level": "info", "event": "turn.done", "logger": "agent.workers.worker_pool"})
    lines = page.get_by_role("table", name="Lines of the log, the newest first")
    await expect(lines.get_by_role("row", name="turn.done")).to_have_count(1)
    await expect(lines.get_by_role("row", name="telegram.<b>slow</b>")).to_contain_text("reference=tabc")
    await take_pictures(page, "console-logs")
    await page.get_by_label("Level").select_option("warning")
    await expect(lines.get_by_role("row", name="turn.done")).to_have_count(0)
    await page.get_by_label("Reference or turn").fill("tab")
    await page.keyboard.press("Enter")
    await expect(lines.get_by_role("row")).to_have_count(2)
    await page.get_by_label("Component").fill("agent.")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No line of the log matches.")).to_be_visible()


async def test_axe_finds_nothing_in_any_view(chromium: Browser, people: ConsolePeople) -> None:
    """The rules of WCAG 2.2 AA over every view, light and wide, dark and on a phone; nothing is cut off."""
    turn = (await people.up.app.store.journal.find_turns(TurnQuery(chat=SessionKey("pocket", "room"))))[0].turn
    views = [
        "overview",
        "people",
        "people/?who=pocket:bob",
        "turns",
        f"turns/{turn[:8]}",
        "tasks",
        "chats",
        "chats/?chat=pocket:room",
        "usage",
        "replay",
    ]
    views += ["doctor", "logs", "setup", "backups"]
    found: list[str] = []
    for context in ({"viewport": WIDE}, {"viewport": PHONE, "color_scheme": "dark"}):
        page = await visit(chromium, people, script=AXE, **context)
        for view in views:
            await page.evaluate("document.querySelector('#view').replaceChildren()")
            await page.goto(f"{people.url}console#{view}")
            await expect(page.locator("#view h2")).to_be_visible()
            await take_picture(page, f"console-{view}")
            found += [f"{view}: {each}" for each in await page.evaluate(RUN_AXE, TAGS)]
    assert found == []


async def test_a_link_logs_in_once(chromium: Browser, people: ConsolePeople) -> None:
    """What `parlour open --console` prints: the code is filled in, gone from the address, and good for one login."""
    operations = people.up.app.operations
    (issued,) = [line async for line in operations["web login"]({})]
    link = f"{issued['page']}console#code={issued['code']}"
    assert issued["page"] == people.url
    page = await (await chromium.new_context()).new_page()
    await page.goto(link)
    await expect(page.get_by_label("Code", exact=True)).to_have_value(issued["code"])
    assert "code" not in await page.evaluate("location.href")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    again = await (await chromium.new_context()).new_page()
    await again.goto(link)
    await again.get_by_label("Code", exact=True).press("Enter")
    await expect(again.locator("#login-error")).to_be_visible()


async def test_members_see_nothing_and_strangers_log_in(chromium: Browser, people: ConsolePeople) -> None:
    """A member is told what the console is for; a wrong code is said, and shows nothing."""
    page = await visit(chromium, people, who="bob")
    await expect(page.get_by_role("heading", name="Nothing to see here")).to_be_visible()
    await expect(page.locator("#views")).to_be_hidden()
    await page.goto(f"{people.url}console#people")
    await expect(page.get_by_role("table")).to_have_count(0)
    stranger = await (await chromium.new_context()).new_page()
    await stranger.goto(f"{people.url}console")
    await stranger.get_by_label("Code", exact=True).fill("AAAA-BBBB")
    await stranger.keyboard.press("Enter")
    await expect(stranger.locator("#login-error")).to_be_visible()
    await stranger.keyboard.press("Escape")
    await expect(stranger.locator("#login")).to_be_visible()
    assert await stranger.locator("#view").inner_text() == ""


async def test_one_person_s_role_and_caps_are_set(chromium: Browser, people: ConsolePeople) -> None:
    """Their page shows what they used of each cap; a cap and a role apply at once, and stand in the audit."""
    page = await visit(chromium, people, "people")
    await page.get_by_role("link", name="pocket:bob").click()
    caps = page.get_by_role("table", name="Caps of this person, over all chats and accounts")
    await expect(page.get_by_text("No cap applies to this person alone.")).to_be_visible()
    await page.get_by_label("Messages in ten minutes").fill("1")
    await page.keyboard.press("Enter")
    await expect(caps.get_by_role("row", name="Messages in ten minutes")).to_contain_text("0 of 1 (0%)")
    assert "answer to" in await people.up.channel.ask("bob", "hello", sender="bob")
    assert "1 message" in await people.up.channel.ask("bob", "hello again", sender="bob")
    await page.reload()
    await expect(caps.get_by_role("row", name="Messages in ten minutes")).to_contain_text("1 of 1 (100%)")
    await take_picture(page, "console-person-wide-light")
    await page.get_by_role("button", name="Make owner").click()
    await page.get_by_role("button", name="Yes").click()
    await expect(page.locator("dt", has_text="Role").locator("+ dd")).to_contain_text("owner")
    await page.get_by_role("button", name="Take ownership back").click()
    await page.get_by_role("button", name="Yes").click()
    await expect(page.get_by_role("button", name="Make owner")).to_be_visible()
    audit = page.get_by_role("table", name="Decisions, the newest first")
    await expect(audit.get_by_role("row").nth(1)).to_contain_text("web:ownerowner removepocket:bobdone")
    await expect(audit.get_by_role("row", name="quota")).to_have_count(1)
    await page.get_by_label("Messages in ten minutes").fill("")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No cap applies to this person alone.")).to_be_visible()
