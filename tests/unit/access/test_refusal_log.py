"""The ring of refusals: silence can be explained, without a word of what was said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.access.refusal_log import WORDS, OtherRefusal, RefusalLog, SilenceReason, explain_refusal
from gateway.admission import AdmissionPolicy, Rejected, RejectionReason, admit
from gateway.events import ChatKind, InboundMessage, Sender, SessionKey
from gateway.installation import operator_command
from gateway.ports.access import CapKind

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
STRANGER = Rejected(reason=RejectionReason.STRANGER, would_admit="an entry")


def build_message(sender: str, chat: str = "501", **facts: Any) -> InboundMessage:
    """Return what somebody wrote."""
    base = InboundMessage(
        key=SessionKey("telegram", chat),
        message_id="1",
        sender=Sender(id=sender, name=f"[Name] of\n{sender}"),
        text="a secret",
        sent_at=NOW,
    )
    return replace(base, **facts)


def test_refusals_are_kept_without_text_and_counted() -> None:
    """Silence can be explained; one busy group does not push the others out of the last 200."""
    kept = RefusalLog(size=2)
    for minute in range(5):
        asked = build_message("7", "-100", chat_kind=ChatKind.GROUP)
        decision = admit(asked, AdmissionPolicy(channel="telegram"))
        assert isinstance(decision, Rejected)
        kept.note(replace(asked, message_id=str(minute)), decision, NOW + timedelta(minutes=minute))
    (refused,) = kept.recent("telegram", "7")
    assert (refused.times, refused.first_at, refused.last_at) == (5, NOW, NOW + timedelta(minutes=4))
    assert "secret" not in repr(refused)
    for sender in ("8", "9"):
        kept.note(build_message(sender), STRANGER, NOW)
    assert [refused.sender for refused in kept.recent()] == ["9", "8"]


def test_a_message_that_comes_twice_counts_once() -> None:
    """Slack says a mention twice, and any platform may repeat itself: what is nowhere stored is still one message."""
    kept = RefusalLog(size=1)
    for number in ("1", "1", "2", "2"):
        kept.note(replace(build_message("7"), message_id=number), STRANGER, NOW)
    assert [refused.times for refused in kept.recent()] == [2]
    for _ in range(2):  # a press has no message id, and each is one
        kept.note(replace(build_message("8"), message_id=""), STRANGER, NOW)
    assert [(refused.sender, refused.times) for refused in kept.recent()] == [("8", 2)]


def test_our_own_messages_are_no_refusals() -> None:
    """The echo of what we sent explains nobody's silence."""
    kept = RefusalLog()
    asked = replace(build_message("1"), sender=Sender(id="1", is_self=True))
    decision = admit(asked, AdmissionPolicy(channel="telegram"))
    assert isinstance(decision, Rejected)
    kept.note(asked, decision, NOW)
    assert kept.recent() == ()


def test_a_name_is_for_the_operator_alone() -> None:
    """Who it was is shown as one harmless line; the log has the id and no name."""
    kept = RefusalLog()
    with capture_logs() as logs:
        kept.note(build_message("7"), STRANGER, NOW)
    (refused,) = kept.recent()
    assert refused.name == "Name of 7"
    assert [line["sender"] for line in logs] == ["7"]
    assert "Name" not in repr(logs)


def test_a_chat_is_found_with_its_threads() -> None:
    """Somebody asks about a place, or about a person; another place is not in the answer."""
    kept = RefusalLog()
    for sender, chat in (("7", "C1/1.2"), ("8", "C1"), ("9", "C10")):
        kept.note(build_message(sender, chat, chat_kind=ChatKind.GROUP), STRANGER, NOW)
    assert {refused.sender for refused in kept.recent("telegram", "C1")} == {"7", "8"}
    assert {refused.chat for refused in kept.recent("telegram", "C1")} == {"C1"}
    assert [refused.sender for refused in kept.recent("telegram", "9")] == ["9"]
    assert kept.recent("slack", "C1") == ()


def test_what_is_nobodys_message_is_explained_too() -> None:
    """An event that was set aside and a deaf channel are reasons of silence; they are counted like the others."""
    kept = RefusalLog()
    kept.note_channel("telegram", SilenceReason.DEAF, "its log", NOW)
    kept.note_channel("telegram", SilenceReason.DEAF, "its log", NOW)
    kept.note(build_message("7"), OtherRefusal(reason=SilenceReason.EXPIRED), NOW)
    assert kept.summary()["telegram"].reasons == {"deaf": 2, "expired": 1}


def test_the_figures_are_of_people_who_wanted_something() -> None:
    """Talk beside the bot and other bots are no one's silence in the operator's figures; strangers are."""
    kept = RefusalLog()
    for sender, reason in (
        ("7", RejectionReason.STRANGER),
        ("7", RejectionReason.GUEST),
        ("8", RejectionReason.NOT_ADDRESSED),
        ("9", RejectionReason.BOT),
    ):
        kept.note(build_message(sender), Rejected(reason=reason, would_admit=""), NOW)
    unheard = kept.summary()["telegram"]
    assert (unheard.messages, unheard.people, unheard.since) == (2, {"7"}, NOW)
    assert sum(unheard.reasons.values()) == 4


def test_every_reason_there_is_has_its_words() -> None:
    """Nobody has to guess what a reason means: admission's, the caps' and what is neither."""
    reasons: list[str] = [*RejectionReason, *SilenceReason, *CapKind]
    assert set(WORDS) == set(reasons)


@pytest.mark.parametrize(
    ("reason", "facts", "lines"),
    [
        (RejectionReason.STRANGER, {}, [operator_command("people allow telegram:7")]),
        (
            RejectionReason.STRANGER,
            {"chat_kind": ChatKind.GROUP, "guild": "811", "key": SessionKey("telegram", "-100/5")},
            [operator_command(f"people allow telegram:{who}") for who in ("7", "chat:-100", "guild:811")],
        ),
        (
            RejectionReason.PLACE_PENDING,
            {"chat_kind": ChatKind.GROUP, "key": SessionKey("telegram", "-100")},
            [operator_command("people allow telegram:chat:-100")],
        ),
        (RejectionReason.BOT, {}, []),
    ],
)
def test_what_would_end_it_can_be_pasted(reason: RejectionReason, facts: dict[str, Any], lines: list[str]) -> None:
    """Each line is a command or a setting as it is; where nothing helps there is none."""
    kept = RefusalLog()
    refused = kept.note(replace(build_message("7"), **facts), Rejected(reason=reason, would_admit=""), NOW)
    assert list(explain_refusal(refused).paste) == lines


@pytest.mark.parametrize(
    ("reason", "would_admit", "line"),
    [
        (
            RejectionReason.GROUPS_OFF,
            "mention or open in channels.telegram.group_policy",
            "PARLOUR_CHANNELS__TELEGRAM__GROUP_POLICY=mention",
        ),
        (
            RejectionReason.NOT_ADDRESSED,
            "a mention, or open in channels.telegram.group_policy",
            "PARLOUR_CHANNELS__TELEGRAM__GROUP_POLICY=open",
        ),
        (
            RejectionReason.NOT_ADDRESSED,
            "a mention, or open in chats.telegram:-100.group_policy",
            'in parlour.yaml, below chats and "telegram:-100": group_policy: open',
        ),
        (RejectionReason.BLOCKED, "`parlour people allow telegram:7`", operator_command("people allow telegram:7")),
    ],
)
def test_a_setting_is_named_where_it_stands(reason: RejectionReason, would_admit: str, line: str) -> None:
    """A block's setting is a variable to paste; a chat's own is named as it stands in the file."""
    refused = RefusalLog().note(build_message("7"), Rejected(reason=reason, would_admit=would_admit), NOW)
    assert explain_refusal(refused).paste == (line,)
