"""Owners are told exactly once, over a channel that works."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from gateway.alerts.alert_sources import (
    BurstSource,
    ChannelSource,
    ModelSource,
    QuarantineSource,
    find_cap_use,
    find_changed_tools,
    find_dead_letters,
    find_low_disk,
    find_models_without_tools,
    find_unclean_stops,
    find_unpriced_models,
)
from gateway.alerts.alert_state import NotificationKind, Observation, alert_text, reason
from gateway.alerts.monitor import Source
from gateway.errors import FailureCause, LoginRefused, UserError
from gateway.events import SessionKey, turn_id
from gateway.i18n import translate
from gateway.installation import operator_command
from gateway.ports.access import CapAllowance, CapKind
from gateway.ports.channel import PlatformEvent
from gateway.quarantine import KEPT, QuarantineFolder
from gateway.store.alerts import Alert
from tests.fakes.alert_scene import OWNER_HERE, OWNER_THERE, AlertScene
from tests.fakes.clock import EPOCH, VirtualClock
from tests.fakes.memory_channel import ChannelFault
from tests.fakes.turns import accept, answer, said

DOWN = "No connection to telegram since 2026-11-21 22:01."
BACK = "telegram is connected again. It had been disconnected since 2026-11-21 22:01."


def channels(scene: AlertScene, refusals: Mapping[str, UserError] | None = None) -> Mapping[str, Source]:
    """Return the source that looks at the channels."""
    return {"channels": ChannelSource(lambda: scene.hears, lambda: refusals or {}, scene.clock.now)}


async def outage(scene: AlertScene) -> None:
    """Telegram is away from the first minute to the twentieth; the process may die and start again meanwhile."""
    for minute, is_up in ((1, True), (20, False), (40, True)):
        scene.hears["telegram"] = is_up
        await scene.until(minute)
        if scene.died.is_set():
            await scene.kill()
            await scene.start()
            await scene.until(minute)


async def test_an_owner_is_told_over_another_channel_and_once_when_it_is_back(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Telegram is down for five minutes: Slack says so, then says that it is back; Telegram itself says nothing."""
    scene = AlertScene(tmp_path / "home", clock, channels)
    await scene.start()
    await outage(scene)
    assert [line.split(" I keep")[0] for line in scene.told(OWNER_THERE)] == [DOWN, BACK]
    assert scene.told(OWNER_HERE) == []
    await scene.stop()


async def test_guessing_is_told_and_typing_mistakes_are_not(tmp_path: Path, clock: VirtualClock) -> None:
    """Twenty wrong codes within an hour are told, and what comes within the next hour is counted into one line."""
    wrong = {"web": 0}

    def guesses(_: AlertScene) -> Mapping[str, Source]:
        return {"login codes": BurstSource("login-codes", "alerts.login_codes", lambda: wrong, clock.now, many=20)}

    scene = AlertScene(tmp_path / "home", clock, guesses)
    await scene.start()
    for minute, count in ((70, 19), (80, 25), (81, 45), (90, 200), (170, 201)):
        wrong["web"] = count
        await scene.until(minute)
    lines = scene.told(OWNER_HERE)
    assert [line.partition(" wrong")[0].rpartition(": ")[2] for line in lines] == ["26", "155"]
    assert "still work" in lines[0]
    await scene.stop()


async def test_a_crash_loop_tells_once_an_hour(tmp_path: Path, clock: VirtualClock) -> None:
    """Killed and started every four minutes for two hours: three lines, and the later ones count."""
    stops = 0

    def killed(_: AlertScene) -> Mapping[str, Source]:
        return {"killed": partial(find_unclean_stops, stops=stops)}

    scene = AlertScene(tmp_path / "home", clock, killed)
    for minute in range(4, 132, 4):
        await scene.start()
        await scene.until(minute)
        await scene.kill()
        stops += 1
    lines = [line.partition(", most recently")[0] for line in scene.told(OWNER_HERE)]
    assert lines == [
        "The bot was terminated without a clean shutdown",
        "The bot was terminated without a clean shutdown (15 times)",
        "The bot was terminated without a clean shutdown (15 times)",
    ]


async def test_what_happened_waits_for_a_way_and_for_its_hour(tmp_path: Path, clock: VirtualClock) -> None:
    """A kill is told when a channel hears, and what followed within the hour when the hour is over."""
    scene = AlertScene(
        tmp_path / "home", clock, lambda scene: {"killed": partial(find_unclean_stops, stops=scene.runs + 1)}
    )
    scene.hears = {"telegram": False, "slack": False}
    await scene.start()
    await scene.until(1)
    assert scene.told(OWNER_HERE) == []
    scene.hears["telegram"] = True
    await scene.until(2)
    assert len(scene.told(OWNER_HERE)) == 1
    await scene.kill()
    await scene.start()
    await scene.until(60)
    assert len(scene.told(OWNER_HERE)) == 1
    await scene.until(62)
    assert len(scene.told(OWNER_HERE)) == 2
    await scene.stop()


async def test_a_refused_token_is_told_at_once(tmp_path: Path, clock: VirtualClock) -> None:
    """No five minutes' wait: nobody but a person can mend it."""
    refusals: dict[str, UserError] = {}
    scene = AlertScene(tmp_path / "home", clock, lambda scene: channels(scene, refusals))
    await scene.start()
    await scene.until(1)
    scene.hears["telegram"] = False
    refusals["telegram"] = LoginRefused("canary")
    scene.watch.check_now.set()
    await scene.until(1.01)
    (line,) = scene.told(OWNER_THERE)
    assert line.startswith("telegram rejects the bot's token")
    assert "canary" not in line
    await scene.stop()


async def test_without_another_way_the_owner_is_told_when_it_is_back(tmp_path: Path, clock: VirtualClock) -> None:
    """One line over the channel itself: that it is back, and since when it was away. Meanwhile the log knows."""
    scene = AlertScene(tmp_path / "home", clock, channels, owners=[(OWNER_HERE,)])
    await scene.start()
    await outage(scene)
    assert scene.told(OWNER_HERE) == [BACK]
    await scene.stop()


async def test_every_owner_is_told_in_their_own_chat_and_an_open_page_too(tmp_path: Path, clock: VirtualClock) -> None:
    """Two owners, one of them with two accounts: a line each; the page's only while it is open."""
    page, other = SessionKey("web", "owner"), SessionKey("slack", "U2")
    scene = AlertScene(
        tmp_path / "home",
        clock,
        lambda scene: {"disk": _SteppedSource([0, 2, 2, 0])},
        owners=[(OWNER_HERE, OWNER_THERE), (other,)],
        pages=(page,),
    )
    await scene.start()
    scene.channels["web"].watched = True
    await scene.until(2)
    for key in (OWNER_HERE, other, page):
        assert [line.split(":")[0] for line in scene.told(key)] == [
            "The server's disk is full",
            "The disk has enough free space again.",
        ]
    assert scene.told(OWNER_THERE) == []
    await scene.stop()


class _SteppedSource:
    """A source that sees one stage after the other."""

    def __init__(self, stages: Sequence[int]) -> None:
        self._stages = list(stages)

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        stage = self._stages.pop(0) if len(self._stages) > 1 else self._stages[0]
        return [
            Observation(cause="disk", since=EPOCH, stage=stage, line="alerts.disk_full", fields={"free": 1_000_000})
        ]


async def test_what_is_for_an_owner_out_of_reach_waits_for_their_channel(tmp_path: Path, clock: VirtualClock) -> None:
    """One owner is told now; the other's line stands in the outbox of their own channel, which is away."""
    scene = AlertScene(
        tmp_path / "home", clock, lambda scene: {"disk": _SteppedSource([2])}, owners=[(OWNER_HERE,), (OWNER_THERE,)]
    )
    scene.hears["slack"] = False
    scene.platforms["slack"].fail(ChannelFault.LATER, seconds=300, calls=1)
    await scene.start()
    await scene.until(1)
    assert (len(scene.told(OWNER_HERE)), scene.told(OWNER_THERE)) == (1, [])
    await scene.until(10)
    assert len(scene.told(OWNER_THERE)) == 1
    await scene.stop()


async def test_what_does_not_arrive_was_not_told(tmp_path: Path, clock: VirtualClock) -> None:
    """An owner's chat that takes nothing is tried once a day: meanwhile the next account, and `status` knows.

    Where there is no other, they are told when they write to us; nobody is told that a notice was given up.
    """
    scene = AlertScene(
        tmp_path / "home",
        clock,
        lambda scene: {"disk": _SteppedSource([2]), "given up": partial(find_dead_letters, store=scene.store.alerts)},
        owners=[(OWNER_HERE,)],
    )
    await scene.start()
    scene.platforms["telegram"].fail(ChannelFault.REFUSED, chat=OWNER_HERE.chat, calls=2)
    for minute, sent in ((5, 1), (10, 2)):
        await scene.until(minute)
        await scene.kill()
        await scene.start()
        await scene.until(minute + 2)
        assert await scene.standing() == ["disk: untold, 0"]
        assert len(scene.platforms["telegram"].at("send", OWNER_HERE)) == sent
        clock.set_wall(timedelta(hours=24))
    await accept(scene.store, said(key=OWNER_HERE, second=60 * 60 * 50))
    await scene.until(15)
    assert await scene.standing() == ["disk: told, 1"]
    assert [line.split(":")[0] for line in scene.told(OWNER_HERE)] == ["The server's disk is full"]
    await scene.stop()


async def test_an_owner_whose_own_chat_fails_makes_no_circle(tmp_path: Path, clock: VirtualClock) -> None:
    """The answer to an owner is given up, and so is the line that says so: one of each, and it stays untold."""
    scene = AlertScene(
        tmp_path / "home",
        clock,
        lambda scene: {"given up": partial(find_dead_letters, store=scene.store.alerts)},
        owners=[(OWNER_HERE,)],
    )
    await scene.start()
    await scene.until(1)
    scene.platforms["telegram"].fail(ChannelFault.REFUSED, chat=OWNER_HERE.chat, calls=1_000)
    await answer(scene.store, said(key=OWNER_HERE), "canary")
    await scene.until(120)
    assert len(scene.platforms["telegram"].at("send", OWNER_HERE)) == 2
    assert await scene.standing() == ["given-up: untold, 0"]
    await scene.stop()


async def test_the_other_account_is_told_what_did_not_arrive(tmp_path: Path, clock: VirtualClock) -> None:
    """What merely happened too, with how often it did; the owner who was told is not told again."""
    scene = AlertScene(
        tmp_path / "home",
        clock,
        lambda _: {"killed": partial(find_unclean_stops, stops=3)},
        owners=[(OWNER_HERE, OWNER_THERE)],
    )
    await scene.start()
    scene.platforms["telegram"].fail(ChannelFault.REFUSED, chat=OWNER_HERE.chat)
    await scene.until(90)
    (line,) = scene.told(OWNER_THERE)
    assert line.startswith("The bot was terminated without a clean shutdown (3 times)")
    assert await scene.standing() == ["killed: told, 1"]
    await scene.stop()


async def test_what_cannot_be_stored_is_told_when_it_can(tmp_path: Path, clock: VirtualClock) -> None:
    """A journal that is down for minutes loses no line and repeats none."""
    scene = AlertScene(tmp_path / "home", clock, lambda scene: {"disk": _SteppedSource([0, 2])})
    await scene.start()
    scene.writer.fault = OSError("disk full")
    await scene.until(3)
    assert scene.told(OWNER_HERE) == []
    scene.writer.fault = None
    await scene.until(6)
    assert len(scene.told(OWNER_HERE)) == 1
    await scene.stop()


class _BrokenSource:
    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        raise ValueError


async def test_a_source_that_breaks_silences_no_other(tmp_path: Path, clock: VirtualClock) -> None:
    """One blind eye leaves the others open."""
    scene = AlertScene(tmp_path / "home", clock, lambda scene: {"broken": _BrokenSource(), "disk": _SteppedSource([2])})
    await scene.start()
    await scene.until(1)
    assert len(scene.told(OWNER_HERE)) == 1
    await scene.stop()


async def test_a_message_given_up_is_told_with_its_chat_reason_and_reference(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Plain words and what to type, no word of the message; what cannot be brought to the owner is told to nobody."""
    scene = AlertScene(
        tmp_path / "home", clock, lambda scene: {"given up": partial(find_dead_letters, store=scene.store.alerts)}
    )
    await scene.start()
    await scene.until(1)
    scene.platforms["telegram"].fail(ChannelFault.REFUSED, chat=said().key.chat)
    await answer(scene.store, said(), "canary")
    await scene.until(2)
    (line,) = scene.told(OWNER_HERE)
    assert line == (
        f"One message could not be delivered, most recently in {said().key}: the recipient does not accept messages"
        f" from the bot. Run `{operator_command(f'turn {turn_id(said())[:8]}')}` on the server for details."
    )
    await scene.stop()


@pytest.mark.parametrize(
    ("said_so", "name"),
    [
        ("Forbidden: bot was blocked by the user", "blocked"),
        ("Discord answered 403, code 50007", "blocked"),
        ("Discord answered 403, code 50013", "rights"),
        ("Discord answered 403, code 50001", "outside"),
        ("not_in_channel", "outside"),
        ("Forbidden: bot was kicked from the supergroup chat", "outside"),
        ("Forbidden: bot is not a member of the channel chat", "outside"),
        ("Forbidden: the group chat was deleted", "gone"),
        ("Bad Request: CHAT_WRITE_FORBIDDEN", "rights"),
        ("Bad Request: need administrator rights in the channel chat", "rights"),
        ("restricted_action_read_only_channel", "rights"),
        ("message to be replied not found", "other"),
        ("Discord answered 404, code 10003", "gone"),
        ("channel_not_found", "gone"),
        ("Chat not found", "gone"),
        ("not enough rights to send text messages to the chat", "rights"),
        ("larger than 50 MB", "size"),
        ("given up after 12 attempts: the platform said nothing in time", "attempts"),
        ("poison", "poison"),
        ("bug", "bug"),
        ("debugging is off", "other"),
    ],
)
def test_what_platforms_say_is_put_into_plain_words(said_so: str, name: str) -> None:
    """None of their words reach an owner: each is one of our sentences, whose name stands in the catalogue."""
    assert reason(said_so) == name
    assert translate(f"alerts.because_{reason(said_so)}")


async def test_a_model_that_answers_nobody_for_ten_minutes_is_told_and_its_return(
    tmp_path: Path, clock: VirtualClock
) -> None:
    """Failures count from the first to the last with nothing good between; where nobody asks, nothing is known."""
    model = ModelSource(clock.now)
    scene = AlertScene(tmp_path / "home", clock, lambda scene: {"model": model})
    await scene.start()
    for minute in (1, 5, 10):
        await scene.until(minute)
        model.record_failure()
    await scene.until(60)
    assert scene.told(OWNER_HERE) == []
    for minute in (61, 66, 72):
        await scene.until(minute)
        model.record_failure()
    await scene.until(73)
    model.record_answer("m")
    await scene.until(74)
    first, second = scene.told(OWNER_HERE)
    assert first.startswith("No model has answered since 2026-11-21 22:")
    assert second.startswith("The model answers again.")
    await scene.stop()


async def test_a_cause_that_a_person_repairs_is_told_at_once_and_once(tmp_path: Path, clock: VirtualClock) -> None:
    """A rejected key is one line with its remedy, however many messages meet it; another cause is another line."""
    model = ModelSource(clock.now)
    scene = AlertScene(tmp_path / "home", clock, lambda scene: {"model": model})
    await scene.start()
    for minute in (1, 2, 3):
        model.record_fault("openai/gpt-5", FailureCause.KEY)
        assert model.check_now.is_set()
        await scene.until(minute)
    assert scene.told(OWNER_HERE) == [
        "The model openai/gpt-5 does not answer. The provider rejected the API key. Check `llm.api_key`, or run"
        " `make init` to enter another one."
    ]
    model.record_fault("openai/gpt-5", FailureCause.ACCOUNT)
    model.record_fault("other", FailureCause.CERTIFICATE_EXPIRED)
    await scene.until(4)
    model.record_answer("openai/gpt-5")
    await scene.until(5)
    lines = scene.told(OWNER_HERE)[1:]
    assert [line[:45] for line in lines] == [
        "The model openai/gpt-5 does not answer. The a",
        "The model other does not answer. The model se",
        "The model openai/gpt-5 answers again.",
    ]
    await scene.stop()


async def test_a_fault_of_a_model_that_was_replaced_ends_silently(tmp_path: Path, clock: VirtualClock) -> None:
    """The operator has set another model: it answers, and the old one, which nobody asks, is no trouble any more."""
    models: list[ModelSource] = []

    def sources(_: AlertScene) -> Mapping[str, Source]:
        models.append(ModelSource(clock.now))
        return {"model": models[-1]}

    scene = AlertScene(tmp_path / "home", clock, sources)
    await scene.start()
    models[-1].record_fault("old/model", FailureCause.KEY)
    await scene.until(1)
    await scene.kill()
    await scene.start()
    await scene.until(2)
    assert scene.watch.active_alerts() == ("model_fault.key.old/model",)  # nothing has answered yet
    models[-1].record_answer("new/model")
    await scene.until(3)
    assert scene.watch.active_alerts() == ()
    assert len(scene.told(OWNER_HERE)) == 1
    await scene.stop()


async def test_four_fifths_of_a_day_s_tokens_and_all_of_them_are_told_once(tmp_path: Path, clock: VirtualClock) -> None:
    """80 %, 100 % and the new day: three lines, however often it is looked at."""
    used = 0

    def usage() -> CapAllowance:
        return CapAllowance(cap=CapKind.HOUSE_TOKENS, used=used, limit=1_000, until=clock.now() + timedelta(hours=2))

    scene = AlertScene(tmp_path / "home", clock, lambda _: {"cap": partial(find_cap_use, usage=usage)})
    await scene.start()
    for minute, used in ((1, 790), (2, 800), (3, 900), (4, 1_000), (5, 1_200), (6, 0)):  # noqa: B007 - the source reads it
        await scene.until(minute)
    await scene.until(7)
    lines = [line[:31] for line in scene.told(OWNER_HERE)]
    assert lines == [
        "80 % of today's token limit is ",
        "Today's token limit is used up:",
        "The daily limit has been reset.",
    ]
    await scene.stop()


async def test_the_cap_in_money_is_told_in_dollars(clock: VirtualClock) -> None:
    """80 % of a day's dollars and all of them, as people write them."""
    for used, line in (
        (2_000_000, "80 % of today's limit in US dollars is used: $2.00 of $2.50."),
        (2_600_000, "Today's limit in US dollars is used up: $2.60 of $2.50."),
    ):
        usage = CapAllowance(cap=CapKind.HOUSE_COST, used=used, limit=2_500_000, until=clock.now())
        (seen,) = find_cap_use({}, usage=partial(lambda found: found, usage))
        alert = Alert(cause=seen.cause, since=clock.now(), line=seen.line, fields=seen.fields)
        assert alert_text(alert, NotificationKind.TROUBLE, 1).startswith(line)


async def test_a_changed_tool_is_reported_once_for_a_pin(clock: VirtualClock) -> None:
    """Again when the tool is pinned anew and changes once more; the marks of old pins are forgotten at some time."""
    tools = {"mcp_tracker_b": "2" * 64, "mcp_tracker_a": "1" * 64}
    (first,) = find_changed_tools({}, tools=lambda: tools)
    assert (first.happened, first.fields["tools"]) == (2, "`mcp_tracker_a`, `mcp_tracker_b`")
    known = {"mcp-changed": Alert(cause="mcp-changed", since=clock.now(), mark=first.mark)}
    assert not list(find_changed_tools(known, tools=lambda: tools))
    tools["mcp_tracker_a"] = "3" * 64
    (second,) = find_changed_tools(known, tools=lambda: tools)
    assert (second.happened, second.fields["tools"]) == (1, "`mcp_tracker_a`")
    alert = Alert(cause="mcp-changed", since=clock.now(), line=second.line, fields=second.fields)
    assert "mcp_tracker_a" in alert_text(alert, NotificationKind.TROUBLE, 1)
    many = {f"mcp_tracker_{n}": "4" * 64 for n in range(300)}
    (third,) = find_changed_tools({}, tools=lambda: many)
    assert len(third.mark.split()) == 200


async def test_a_model_without_a_price_is_told_once(clock: VirtualClock) -> None:
    """Of each model once, over restarts too: the cause's mark keeps what was reported."""
    models = {"openai/b", "openai/a"}
    (first,) = find_unpriced_models({}, models=lambda: models)
    assert (first.happened, first.fields["models"]) == (2, "openai/a, openai/b")
    known = {"unpriced": Alert(cause="unpriced", since=clock.now(), mark=first.mark)}
    assert not list(find_unpriced_models(known, models=lambda: models))
    models.add("openai/c")
    (second,) = find_unpriced_models(known, models=lambda: models)
    assert (second.happened, second.fields["models"]) == (1, "openai/c")
    told = Alert(cause="unpriced", since=clock.now(), line=second.line, fields=second.fields)
    assert "do not hold for openai/c" in alert_text(told, NotificationKind.HAPPENED, 1)


async def test_low_disk_and_a_quarantined_event_are_seen(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room that is left, by the doctor's thresholds; an event that was set aside since the start, not before."""
    free = 10**12
    monkeypatch.setattr("shutil.disk_usage", lambda _: (10**13, 0, free))
    disk, folder = partial(find_low_disk, home=tmp_path), QuarantineFolder(tmp_path / "quarantine")
    assert [each.stage for each in await disk({})] == [0]
    for free, stage in ((400 * 1024**2, 1), (40 * 1024**2, 2)):  # noqa: B007 - the fake reads it
        assert [each.stage for each in await disk({})] == [stage]
    event = PlatformEvent(channel="slack", id="1", raw="canary")
    folder.write(f"slack-1{KEPT}", event, "unreadable", clock.now())
    source = QuarantineSource(tmp_path / "quarantine")
    (first,) = await source({})
    known = {"set-aside": Alert(cause="set-aside", since=clock.now(), mark=first.mark)}
    assert first.happened == 0
    assert await source(known) == []
    clock.set_wall(timedelta(seconds=1))
    folder.write(f"slack-2{KEPT}", event, "unreadable", clock.now())
    (second,) = await source(known)
    assert (second.happened, second.fields) == (1, {"channel": "slack"})


async def test_the_webhook_s_text_is_queued_with_the_notice(tmp_path: Path, clock: VirtualClock) -> None:
    """The same in English and UTC, as JSON, durable before anybody is called; the schema is the documented one."""
    scene = AlertScene(tmp_path / "home", clock, channels, posts=True)
    await scene.start()
    await outage(scene)
    posts = [json.loads(post.body) for post in await scene.store.alerts.posts(due=clock.now(), limit=9)]
    down, back = posts
    assert down == {
        "format": 1,
        "kind": "alert",
        "id": down["id"],
        "cause": "channel",
        "channel": "telegram",
        "level": "warning",
        "state": "firing",
        "since": "2026-11-21T21:01:00Z",
        "at": down["at"],
        "text": down["text"],
        "host": "house",
        "version": "1.2.3",
    }
    assert down["text"].startswith("No connection to telegram since 2026-11-21 21:01.")
    assert (back["state"], back["since"]) == ("resolved", down["since"])
    assert scene.posted.is_set()
    await scene.stop()


async def test_a_model_without_tools_is_told_once(tmp_path: Path, clock: VirtualClock) -> None:
    """One line for each model, with what brings tools back; not again when the fact is learned again a month later."""
    models: dict[str, datetime] = {}
    find = partial(find_models_without_tools, models=lambda: models)
    scene = AlertScene(tmp_path / "home", clock, lambda _: {"model tools": find})
    await scene.start()
    await scene.until(1)
    assert scene.told(OWNER_HERE) == []
    models["openai/gemma3 ab12cd"] = clock.now()
    await scene.until(90)
    models["openai/gemma3 ab12cd"] = clock.now()
    await scene.until(180)
    [line] = scene.told(OWNER_HERE)
    assert line.startswith("The server of openai/gemma3 refuses tools.")
    assert "parlour doctor --model` tries them again" in line
    await scene.stop()
