"""The panels of memory, reminders and tasks in a real browser before the whole gateway."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import DO, SAY, Reminder
from agent.tasks.task import Task, TaskState
from gateway.events import SessionKey
from gateway.i18n import translate
from tests.e2e.agent.test_mcp import call
from tests.e2e.agent.test_mcp_logins import open_page as follow
from tests.e2e.agent.test_mcp_logins import typed
from tests.e2e.browser import open_chat, open_page, send_text, take_pictures
from tests.e2e.test_page_axe import AXE, check
from tests.fakes.console_people import console_people
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.oauth_mcp import CLIENT, SECRET, oauth_mcp_server

pytestmark = pytest.mark.asyncio(loop_scope="session")
LINE = "My boat is called Nora"
CORRECTED = "My <b>boat</b> is called Ada"
SCOPE = "people/web%3aowner"


def button(within: Page | Locator, key: str) -> Locator:
    """Return the button with the words *key*."""
    return within.get_by_role("button", name=translate(f"web.{key}"), exact=True)


async def test_what_is_remembered_is_explained_corrected_and_taken_back(chromium: Browser) -> None:
    """A line as it was said, its source, corrected, undone and removed, and the question of forgetting."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        panel = page.locator("#memory")
        await button(page, "memory").click()
        await expect(panel.locator(".empty")).to_have_text(translate("web.memory_empty"))
        await expect(panel.locator(".note")).to_have_text(translate("commands.status_no_meaning"))
        await button(panel, "close").click()
        await send_text(page, f"/remember {LINE}")
        await expect(page.locator(".line.notice")).to_have_count(1)
        await button(page, "memory").click()
        line = panel.locator("li")
        await expect(line.locator("p").first).to_have_text(LINE)
        await button(line, "memory_why").click()
        await expect(line.locator(".source")).to_contain_text(translate("memory.cause_remember"))
        await expect(line.locator(".source")).to_contain_text(
            translate("memory.said_by_you", quote=f"/remember {LINE}")
        )
        await take_pictures(page, "page-memory")
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size({"width": 360, "height": 740})
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        # Corrected: the panel is read again with the answer.
        await button(line, "memory_correct").click()
        await line.locator("input").fill(CORRECTED)
        await line.locator("input").press("Enter")
        await expect(line.locator("p").first).to_have_text(CORRECTED)
        await button(line, "memory_why").click()
        await expect(line.locator(".source")).to_contain_text(CORRECTED)
        await button(line, "memory_undo").click()
        await expect(line.locator("p").first).to_have_text(LINE)
        # Escape leaves the field, not the panel.
        await button(line, "memory_correct").click()
        await line.locator("input").press("Escape")
        await expect(line.locator("input")).to_have_count(0)
        await page.set_viewport_size({"width": 1000, "height": 740})
        # Removed alone: the panel says how that differs from forgetting, and the messages stay.
        await expect(panel.locator("#memory-help")).to_have_text(translate("web.memory_help"))
        await button(line, "memory_drop").click()
        await expect(panel.locator(".empty")).to_have_text(translate("web.memory_empty"))
        await button(panel, "close").click()
        answer = page.locator(".line.notice").last
        await expect(answer).to_contain_text(translate("memory.drop_undo", change="").partition("`")[0].strip())
        await expect(page.locator(".line.user").filter(has_text=f"/remember {LINE}")).to_have_count(1)
        undo = re.search(r"/memory undo [0-9a-f]+", await answer.inner_text())
        assert undo is not None
        await send_text(page, undo[0])
        await button(page, "memory").click()
        await expect(line.locator("p").first).to_have_text(LINE)
        # Forgotten everywhere: only after a question, and with the messages.
        await button(line, "memory_forget").click()
        await expect(panel).to_be_hidden()
        await page.locator(".buttons .choice").first.click()
        await up.idle()
        await button(page, "memory").click()
        await expect(panel.locator(".empty")).to_have_text(translate("web.memory_empty"))


async def test_reminders_are_moved_and_cancelled(chromium: Browser) -> None:
    """Each with its time; moved to another one, which the store has; cancelled, and gone."""
    async with gateway(model=HeldScriptModel()) as up:
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        hostile = Reminder(
            id="raaaaaaaa",
            key=SessionKey("web", "owner"),
            by="owner",
            person="web%3aowner",
            kind=SAY,
            text="water the <i>roses</i>",
            at=slot_of(now + timedelta(days=2), "UTC"),
            zone="UTC",
            set_at=now,
            source="t.1",
        )
        page = await open_chat(chromium, up.app.web.url)
        entry = page.locator("#reminders li")
        shown = replace(hostile, id="rbbbbbbbb", text="water the roses").to_job(SCOPE)
        await up.app.store.jobs.put(shown)
        await button(page, "reminders").click()
        await expect(entry.locator("p").first).to_have_text("water the roses")
        await take_pictures(page, "page-reminders")
        await button(page.locator("#reminders"), "close").click()
        await up.app.store.jobs.finish(shown)
        await up.app.store.jobs.put(hostile.to_job(SCOPE))
        await button(page, "reminders").click()
        await expect(entry.locator("p").first).to_have_text("water the <i>roses</i>")
        await button(entry, "reminder_move").click()
        slot = slot_of(now + timedelta(days=9), "UTC")[:16]
        await entry.locator("input").fill(slot)
        before = await entry.locator("p").nth(1).inner_text()
        await button(entry, "save").click()
        await expect(entry.locator("p").nth(1)).not_to_have_text(before)
        (job,) = [each for each in await up.app.store.jobs.pending_in(SCOPE) if each.kind == "remind"]
        assert str(job.payload["at"]).startswith(slot)
        await button(entry, "reminder_cancel").click()
        await expect(page.locator("#reminders .empty")).to_have_text(translate("web.reminders_empty"))
        assert not [each for each in await up.app.store.jobs.pending_in(SCOPE) if each.kind == "remind"]


async def test_how_the_runs_of_a_request_ended(chromium: Browser) -> None:
    """Shown and hidden by its button, by keys; what has not run says so; on a phone nothing is cut off."""
    async with gateway(model=HeldScriptModel("Rain.", "NOTHING")) as up:
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        request = Reminder(
            id="raaaaaaaa",
            key=SessionKey("web", "owner"),
            by="owner",
            person="web%3aowner",
            kind=DO,
            text="what is the weather?",
            at=slot_of(now - timedelta(minutes=1), "UTC"),
            zone="UTC",
            repeat="FREQ=DAILY",
            set_at=now,
            source="t.1",
        )
        later = replace(request, id="rbbbbbbbb", kind=SAY, text="roses", at=slot_of(now + timedelta(days=9), "UTC"))
        await up.app.store.jobs.put(later.to_job(SCOPE))
        await up.app.store.jobs.put(request.to_job(SCOPE))
        page = await open_chat(chromium, up.app.web.url, script=AXE)
        await expect(page.locator(".line.assistant .body")).to_have_text(["Rain."])
        await send_text(page, "/reminders run raaaaaaaa")
        await expect(page.locator(".line.notice")).to_have_count(1)
        await up.idle()
        await expect(page.locator(".line.assistant .body")).to_have_text(["Rain."])
        entries = page.locator("#reminders > ul > li")
        entry, other = entries.filter(has_text="weather"), entries.filter(has_text="roses")
        await button(page, "reminders").click()
        await button(other, "reminder_runs").press("Enter")
        await expect(other.locator(".runs li")).to_have_text([translate("web.reminder_runs_empty")])
        await button(entry, "reminder_runs").press("Enter")
        await expect(button(entry, "reminder_runs")).to_have_attribute("aria-expanded", "true")
        runs = entry.locator(".runs")
        await expect(runs.locator("li")).to_have_count(2)
        await expect(runs.locator("li").first).to_contain_text(translate("promises.state_silent"))
        await expect(runs.locator("li").last).to_contain_text(translate("promises.state_answered"))
        await expect(runs.locator("li").last).to_contain_text("token")
        found: list[str] = []
        await check(page, "runs", found)
        await page.set_viewport_size({"width": 360, "height": 740})
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await check(page, "runs on a phone", found)
        assert found == []
        await button(entry, "reminder_runs").press("Enter")
        await expect(runs).to_be_hidden()
        unknown = await page.evaluate("async () => (await fetch('reminders/runs?id=rcccccccc')).status")
        assert unknown == 404


async def test_a_reminder_comes_in_another_chat_of_its_person(chromium: Browser) -> None:
    """Chosen in a menu of their direct chats, by their titles; the answer reads the panel again; nothing is cut off."""
    async with console_people() as people:
        up = people.up
        now, scope = datetime.now(UTC).replace(second=0, microsecond=0), "people/pocket%3aann"
        reminder = Reminder(
            id="raaaaaaaa",
            key=SessionKey("web", "ann"),
            by="ann",
            person="web%3aann",
            kind=SAY,
            text="water the roses",
            at=slot_of(now + timedelta(days=2), "UTC"),
            zone="UTC",
            set_at=now,
            source="t.1",
        )
        await up.app.store.jobs.put(reminder.to_job(scope))
        page = await open_page(chromium, script=AXE)
        await page.goto(f"{up.app.web.url}#code={await up.app.channels['web'].issue_code('ann')}")  # type: ignore[attr-defined]
        await page.locator("#code").press("Enter")
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await button(page, "reminders").click()
        choice = page.locator("#reminders").get_by_label(translate("web.reminder_chat"))
        await expect(choice.locator("option")).to_have_text(["Web", "Pocket"])
        await expect(choice).to_have_value("web:ann")
        found: list[str] = []
        await check(page, "target", found)
        await page.set_viewport_size({"width": 360, "height": 740})
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await check(page, "target on a phone", found)
        assert found == []
        await choice.focus()
        await choice.select_option("pocket:ann")
        await expect(page.locator(".line.notice").last).to_contain_text("now comes in")
        await expect(choice).to_have_value("pocket:ann")
        (job,) = [each for each in await up.app.store.jobs.pending_in(scope) if each.kind == "remind"]
        assert job.payload["target"] == {"key": "pocket:ann", "by": "ann", "team": ""}


async def test_a_person_reads_only_what_is_theirs(chromium: Browser) -> None:
    """What the owner is remembered by, another login on the page is neither shown nor told the source of."""
    async with gateway(model=HeldScriptModel(), environment={"PARLOUR_WEB__LOGIN": "always"}) as up:
        channel = up.app.channels["web"]
        found = {}
        for who in ("", "ann"):
            page = await (await chromium.new_context()).new_page()
            await page.goto(f"{up.app.web.url}#code={await channel.issue_code(who)}")  # type: ignore[attr-defined]
            await page.locator("#code").press("Enter")
            await expect(page.locator("#state")).to_have_attribute("data-state", "online")
            if not who:
                await send_text(page, "/remember my boat is called Nora")
                await expect(page.locator(".line.notice")).to_have_count(1)
            line = "memory/source?line=my+boat+is+called+Nora"
            ask = "async (paths) => Promise.all(paths.map(async (each) => (await fetch(each)).text()))"
            found[who] = await page.evaluate(ask, ["memory", line])
        assert all("Nora" in each for each in found[""]), found
        assert (json.loads(found["ann"][0])["lines"], found["ann"][1]) == ([], "{}")


async def test_a_model_is_chosen_below_the_message(chromium: Browser) -> None:
    """Those that `/model` offers, and the effort; typed commands show, too; without an offer there is no choice."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        await expect(page.get_by_role("combobox", name=translate("web.effort_choice"))).to_be_visible()
        await expect(page.locator("#model-choice")).to_be_hidden()
    models = json.dumps({"large": {"model": "stage"}, "small": {"model": "stage"}})
    environment = {"PARLOUR_LLM__MODELS": models, "PARLOUR_LLM__MODEL": "stage"}
    async with gateway(model=HeldScriptModel(), environment=environment) as up:
        page = await open_chat(chromium, up.app.web.url)
        choice, effort = (page.locator(f"#{each}-choice select") for each in ("model", "effort"))
        await expect(choice.locator("option")).to_have_text(["stage", "large", "small"])
        await choice.select_option("small")
        await expect(page.locator(".line.notice")).to_contain_text("small")
        await expect(effort).to_have_value("default")
        await effort.select_option("low")
        await expect(page.locator(".line.notice").last).to_contain_text("low")
        await page.reload()
        await expect(choice).to_have_value("small")
        await expect(effort).to_have_value("low")
        await send_text(page, "/model large")
        await expect(choice).to_have_value("large")
        await send_text(page, "good evening")
        await expect(page.locator(".line.assistant .body")).to_have_text("answer 1")
        await check_details(page)
        await button(page, "settings").click()
        await take_pictures(page, "page-settings")


async def check_details(page: Page) -> None:
    """Open and close by the keyboard what answered, for how much; another person and conversation get nothing."""
    details = button(page, "details")
    await details.focus()
    await page.keyboard.press("Enter")
    facts = page.get_by_role("group", name=translate("web.details"))
    await expect(facts.locator("dt")).to_have_text(
        [translate(f"web.{each}") for each in ("model_choice", "details_tokens", "details_cost", "details_time")]
    )
    await expect(facts.locator("dd").first).to_have_text("stage")
    await expect(details).to_have_attribute("aria-expanded", "true")
    await page.keyboard.press("Enter")
    await expect(facts).to_have_count(0)
    turn = await page.locator(".line.assistant").get_attribute("data-turn")
    ask = "async (paths) => Promise.all(paths.map(async (each) => (await fetch(each)).status))"
    paths = [f"turns/{turn}", f"turns/{turn}?conversation={'a' * 16}", f"turns/{turn}?conversation=../x", "turns/none"]
    assert await page.evaluate(ask, paths[:1]) == [200]
    assert [await page.evaluate(ask, [each]) for each in paths[1:]] == [[404]] * 3


async def test_the_browser_s_language_and_zone_are_taken_until_others_are_chosen(chromium: Browser) -> None:
    """At the first visit, also of people who have written before; a choice of theirs, made elsewhere or later, wins."""
    async with gateway(model=HeldScriptModel()) as up:
        before = await open_chat(chromium, up.app.web.url, locale="fr-FR", timezone_id="Asia/Tokyo")
        await send_text(before, "good evening")
        await expect(before.locator(".line.assistant .body")).to_have_text("answer 1")
        await expect(before.locator("html")).to_have_attribute("lang", "en")
        stored = up.app.store.people.preferences
        assert stored(SCOPE)["profile_timezone"] == "Asia/Tokyo"
        page = await open_chat(chromium, up.app.web.url, locale="de-AT", timezone_id="Europe/Vienna")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await expect(page.locator("#text")).to_have_attribute("placeholder", translate("web.placeholder", "de"))
        assert stored(SCOPE)["profile_timezone"] == "Asia/Tokyo"  # the first visit's
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await send_text(page, "/language es")
        await send_text(page, "/timezone Lisbon")
        await expect(page.locator(".line.command, .line.notice")).to_have_count(2)
        again = await open_chat(chromium, up.app.web.url, locale="zh-CN", timezone_id="Asia/Shanghai")
        await expect(again.locator("html")).to_have_attribute("lang", "es")
        assert stored(SCOPE)["timezone"] == "Europe/Lisbon"
    async with gateway(model=HeldScriptModel(), environment={"PARLOUR_LANGUAGE": "es"}) as up:
        page = await open_chat(chromium, up.app.web.url, locale="de-AT", timezone_id="Europe/Vienna")
        await expect(page.locator("html")).to_have_attribute("lang", "es")


async def test_deleting_a_conversation_with_reminders_asks(chromium: Browser) -> None:
    """They stay and come in the first conversation, or are cancelled; without an answer nothing is deleted."""
    async with gateway(model=HeldScriptModel()) as up:
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        page = await open_chat(chromium, f"{up.app.web.url}#c=main")
        await send_text(page, "first words")
        await expect(page.locator(".line.assistant .body")).to_have_text("answer 1")
        for n, conversation in enumerate(("c" * 16, "d" * 16)):
            await page.goto(f"{up.app.web.url}#c={conversation}")
            await expect(page.locator(".line")).to_have_count(0)
            await expect(page.locator("#state")).to_have_attribute("data-state", "online")
            await send_text(page, f"words of {conversation[0]}")
            await expect(page.locator(".line.assistant .body")).to_have_text(f"answer {n + 2}")
            reminder = Reminder(
                id=f"r{conversation[:8]}",
                key=SessionKey("web", f"owner/{conversation}"),
                by="owner",
                person="web%3aowner",
                kind=SAY,
                text=f"water of {conversation[0]}",
                at=slot_of(now + timedelta(days=2), "UTC"),
                zone="UTC",
                set_at=now,
                source="t.1",
            )
            await up.app.store.jobs.put(reminder.to_job(SCOPE))
        titles = page.locator("#conversations a")
        await expect(titles).to_have_count(3)

        async def delete(title: str, answer: str) -> None:
            await page.get_by_label(translate("web.options", title=title)).click()
            await page.get_by_role("menuitem", name=translate("web.delete")).click()
            await expect(page.locator("#deleting")).to_be_visible()
            await button(page, answer).click()
            await expect(page.locator("#deleting")).to_be_hidden()

        await delete("words of c", "delete_keep")
        await expect(titles).to_have_count(3)
        await delete("words of c", "delete_move")
        await expect(titles).to_have_count(2)
        await delete("words of d", "delete_stop")
        await expect(titles).to_have_count(1)
        await expect(page.locator("#state")).to_have_attribute("data-state", "online")
        await up.idle()
        left = [each.id for each in await up.app.store.jobs.pending_in(SCOPE) if each.kind == "remind"]
        assert len(left) == 1
        assert "rcccccccc" in left[0]


async def test_tasks_are_shown_and_stopped(chromium: Browser) -> None:
    """What was asked for as text, its state in words, and how one ended; stopped by its button, and told so."""
    async with gateway(model=HeldScriptModel(), environment={"PARLOUR_TOOLS__TASKS__ENABLED": "true"}) as up:
        now = datetime.now(UTC).replace(second=0, microsecond=0)
        far = now + timedelta(days=400)  # no step of it is due
        running = Task(
            id="kaaaaaaaa",
            key=SessionKey("web", "owner"),
            by="owner",
            person="web%3aowner",
            goal="compare the <b>ferries</b> to Bergen",
            set_at=now,
            started_at=now,
            state=TaskState.RUNNING,
            model_calls=3,
        )
        done = replace(running, id="kbbbbbbbb", goal="find a hotel near the harbour").end(TaskState.DONE, now)
        await up.app.store.jobs.put(replace(running.to_job(SCOPE), due_at=far))
        await up.app.store.jobs.put(replace(done, is_delivered=True).to_job(SCOPE))
        page = await open_chat(chromium, up.app.web.url)
        panel, entry = page.locator("#tasks"), page.locator("#tasks li")
        await button(page, "tasks").click()
        await expect(entry).to_have_count(2)
        await expect(entry.first.locator("p").first).to_have_text("compare the <b>ferries</b> to Bergen")
        await expect(entry.first).to_contain_text("3 steps")
        await expect(entry.last).to_contain_text(translate("tasks.is_done"))
        await expect(button(entry.last, "task_stop")).to_have_count(0)
        await take_pictures(page, "page-tasks")
        await page.set_viewport_size({"width": 360, "height": 740})
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await page.set_viewport_size({"width": 1000, "height": 740})
        await button(entry.first, "task_stop").click()
        await expect(button(panel, "task_stop")).to_have_count(0)
        await expect(panel).to_contain_text(translate("tasks.is_stopped"))
        await button(panel, "close").click()
        await expect(page.locator(".line.notice").last).to_contain_text("is stopped")


async def test_without_tasks_the_page_has_no_button_for_them(chromium: Browser) -> None:
    """As it is unless the operator switches them on."""
    async with gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url)
        await expect(button(page, "reminders")).to_be_visible()
        await expect(page.locator("#tasks-open")).to_be_hidden()


async def test_a_person_signs_out_of_a_service_in_the_settings(chromium: Browser) -> None:
    """Without services there is no section; each has its state in words, and the button that fits it, by keys."""
    async with oauth_mcp_server() as (server, _), gateway(model=HeldScriptModel()) as up:
        page = await open_chat(chromium, up.app.web.url, script=AXE)
        section = page.locator("#settings-services")
        async with page.expect_response("**/services"):
            await button(page, "settings").click()
        await expect(section).to_be_hidden()
        await page.locator("#settings-close").click()
        await call(up, "mcp add", name="tracker", url=server.url, private=True)
        server.register(up.app.logins.redirect("tracker"))
        await call(up, "mcp login", name="tracker", client_id=CLIENT, client_secret=SECRET)
        await button(page, "settings").click()
        await expect(section).to_contain_text(translate("logins.row_out", server="tracker"))
        await page.get_by_role("button", name=f"{translate('web.sign_in')}: tracker").press("Enter")
        await expect(page.locator("#settings")).to_be_hidden()
        link = page.locator(".line.notice a").last
        await expect(link).to_be_visible()
        _, shown = await follow(str(await link.get_attribute("href")))
        await send_text(page, typed(shown))
        await expect(page.locator(".line.notice").last).to_contain_text("signed in to tracker")
        await button(page, "settings").click()
        sign_out = page.get_by_role("button", name=f"{translate('web.sign_out')}: tracker")
        await expect(section).to_contain_text("signed in since")
        found: list[str] = []
        await check(page, "services", found)
        await page.set_viewport_size({"width": 360, "height": 740})
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await check(page, "services on a phone", found)
        assert found == []
        await sign_out.press("Enter")
        await expect(page.locator(".line.notice").last).to_contain_text("tracker")
        await up.idle()
        assert await call(up, "mcp logins") == []
