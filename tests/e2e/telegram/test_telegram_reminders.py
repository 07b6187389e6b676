"""A reminder on Telegram: it mentions its person alone, and its buttons work."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import reminders_in
from tests.fakes.held_model import HeldScriptModel, calls
from tests.fakes.telegram_gateway import TEAM, mention, open_gateway
from tests.fakes.telegram_server import open_telegram


async def test_in_a_group_it_mentions_its_person_and_a_button_snoozes_it() -> None:
    """The name carries the id of the one who set it; the four buttons are real, and go once one of them was pressed."""
    arguments = json.dumps({"what": "ask @everyone", "in_minutes": 1})
    model = HeldScriptModel(calls(("remind", arguments)), "I'll remind you.")
    async with open_telegram() as server, open_gateway(server, model) as parlour:
        server.now = lambda: int(time.time())
        text = "@parlour_bot remind me"
        server.say(text, chat=TEAM, **mention(text))
        await server.until(lambda: bool(server.shown(TEAM)))
        jobs = parlour.app.store.jobs
        (job,) = await jobs.pending_of("remind")
        (reminder,) = reminders_in([job])
        now = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
        await jobs.advance(job, replace(reminder, at=slot_of(now, reminder.zone)).to_job(job.scope))
        await server.until(lambda: any("⏰" in each.text for each in server.posts))
        (post,) = [each for each in server.posts if "⏰" in each.text]
        name = reminder.name
        assert post.text == f"{name} ⏰ ask @everyone"
        (entity,) = post.entities
        assert (entity["type"], entity["offset"], entity["length"]) == ("text_mention", 0, len(name))
        assert entity["user"]["id"] == 42
        assert [label for row in post.buttons for label in row] == ["10 min", "1 h", "Tomorrow", "Stop"]
        server.buttons.press(post, f"/reminders snooze {reminder.id} 10")
        await server.until(lambda: not post.buttons)
        again = [each for each in reminders_in(await jobs.pending_of("remind")) if each.is_snoozed]
        assert [each.text for each in again] == ["ask @everyone"]
