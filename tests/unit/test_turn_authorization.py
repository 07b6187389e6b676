"""Judged again when its turn begins: by what the platform says of the sender then, and by nothing it does not say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.admission import AdmissionPolicy, Admitted, AllowEntry, Decision, Rejected, RejectionReason, admit
from gateway.errors import RetryLater
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.ports.journal import SET_BY_PERSON, InboxRow
from tests.fakes.access_scene import FixedJudge
from tests.fakes.clock import EPOCH, VirtualClock

POLICY = AdmissionPolicy(channel="pocket", entries=frozenset(map(AllowEntry.parse, ("role:7", "42", "chat:open"))))
MESSAGE = InboundMessage(
    key=SessionKey("pocket", "hall"),
    message_id="1",
    sender=Sender(id="9", roles=("7",)),
    text="hello",
    sent_at=EPOCH,
    chat_kind=ChatKind.GROUP,
)


class RoleDirectory:
    """A channel that knows who has which roles now and who is an admin, or cannot say."""

    def __init__(self, roles: tuple[str, ...] | None, *, is_admin: bool = False) -> None:
        self.roles = roles
        self.is_admin = is_admin
        self.asked = 0

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender with the facts of now; None never answers."""
        self.asked += 1
        if self.roles is None:
            await asyncio.Event().wait()
        if self.roles == ("busy",):
            raise RetryLater(timedelta(seconds=5))
        if self.roles == ("bug",):
            raise ZeroDivisionError
        return replace(message.sender, roles=self.roles or (), is_admin=self.is_admin)


CANNOT = pytest.mark.parametrize("roles", [None, ("busy",), ("bug",)], ids=["silent", "busy", "broken"])


async def authorize_row(channel: Any, message: InboundMessage = MESSAGE, *, role: Role = Role.MEMBER) -> Role | None:
    """Admit a row that was let in when it came."""
    row = InboxRow(seq=1, message=message, accepted_at=EPOCH, role=role)
    admitted = await FixedJudge(lambda each: admit(each, POLICY), {"pocket": channel}).current_admission(row)
    return admitted.role if admitted is not None else None


async def test_a_role_that_was_taken_away_no_longer_counts() -> None:
    """And one that is still there does."""
    assert await authorize_row(RoleDirectory(("7",))) is Role.MEMBER
    assert await authorize_row(RoleDirectory(())) is None


@CANNOT
async def test_what_cannot_be_known_lets_nobody_in(clock: VirtualClock, roles: tuple[str, ...] | None) -> None:
    """Fails closed, within seconds; but who is named by their own id needs no role."""
    assert await authorize_row(RoleDirectory(roles)) is None
    assert clock.seconds <= 15
    named = replace(MESSAGE, sender=Sender(id="42", roles=("7",)))
    assert await authorize_row(RoleDirectory(roles), named) is Role.MEMBER


@pytest.mark.parametrize("kind", [InboundKind.COMMAND, InboundKind.BUTTON])
async def test_who_decides_in_a_shared_chat_is_looked_up_as_well(kind: InboundKind) -> None:
    """An admin of now is an admin, whatever was stored when the row came; one of then is not."""
    asked = replace(MESSAGE, kind=kind, sender=Sender(id="42"))
    then = replace(asked, sender=Sender(id="42", is_admin=True))
    assert await authorize_row(RoleDirectory((), is_admin=True), asked) is Role.ADMIN
    assert await authorize_row(RoleDirectory(()), then, role=Role.ADMIN) is Role.MEMBER


@CANNOT
async def test_an_admin_who_cannot_be_looked_up_is_none(clock: VirtualClock, roles: tuple[str, ...] | None) -> None:
    """They may speak, being named, and decide nothing; whatever the event said of them."""
    was = replace(MESSAGE, kind=InboundKind.COMMAND, sender=Sender(id="42", is_admin=True))
    assert await authorize_row(RoleDirectory(roles), was, role=Role.ADMIN) is Role.MEMBER
    assert clock.seconds <= 15
    of_the_chat = replace(was, key=SessionKey("pocket", "open"), sender=Sender(id="8", is_admin=True))
    assert await authorize_row(RoleDirectory(roles), of_the_chat, role=Role.ADMIN) is Role.MEMBER


@CANNOT
async def test_a_member_of_a_server_or_workspace_who_cannot_be_looked_up_is_a_stranger(
    clock: VirtualClock, roles: tuple[str, ...] | None
) -> None:
    """Whoever left would be let in by it for ever otherwise; a chat without either is let in as it is."""
    inside = SessionKey("pocket", "open")
    for fact in ({"guild": "5"}, {"sender": Sender(id="8", team="T1")}):
        assert await authorize_row(RoleDirectory(roles), replace(MESSAGE, key=inside, **fact)) is None
    assert await authorize_row(RoleDirectory(roles), replace(MESSAGE, key=inside, sender=Sender(id="8"))) is Role.MEMBER


@pytest.mark.parametrize("prefix", SET_BY_PERSON)
async def test_a_job_that_a_person_set_is_admitted_as_their_own_message(prefix: str) -> None:
    """With the role of now, looked up in a shared chat; the role that was stored with the row counts for nothing."""
    row = replace(MESSAGE, kind=InboundKind.JOB, message_id=f"{prefix}r1/2026-11-21T09:00")
    assert await authorize_row(RoleDirectory(()), row, role=Role.OWNER) is None
    assert await authorize_row(RoleDirectory(("7",)), row, role=Role.OWNER) is Role.MEMBER
    named = replace(row, sender=Sender(id="42", is_admin=True))
    assert await authorize_row(RoleDirectory(()), named, role=Role.OWNER) is Role.MEMBER
    assert await authorize_row(RoleDirectory((), is_admin=True), named) is Role.ADMIN
    assert await authorize_row(RoleDirectory(("7",)), replace(row, sender=Sender(id="666"))) is Role.MEMBER
    typed = replace(row, kind=InboundKind.MESSAGE, sender=Sender(id="666"))
    assert await authorize_row(RoleDirectory(()), typed, role=Role.OWNER) is None  # an id alone is no job


LOST: dict[str, tuple[Decision, bool, bool]] = {  # the decision: lost without a server, and in one
    "admitted": (Admitted(role=Role.MEMBER), False, False),
    "unknown": (Rejected(reason=RejectionReason.STRANGER, would_admit=""), True, False),
    "unknown where a chat waits": (Rejected(reason=RejectionReason.PLACE_PENDING, would_admit=""), True, False),
    "blocked": (Rejected(reason=RejectionReason.BLOCKED, would_admit=""), True, True),
    "no groups": (Rejected(reason=RejectionReason.GROUPS_OFF, would_admit=""), True, True),
}


@pytest.mark.parametrize(("decision", "alone", "in_server"), LOST.values(), ids=LOST.keys())
def test_access_is_lost_where_no_role_can_admit(decision: Decision, *, alone: bool, in_server: bool) -> None:
    """In a server, a role that is not looked up may admit people whom no entry names; it lifts no block."""
    for guild, is_lost in (("", alone), ("5", in_server)):
        assert FixedJudge(lambda _: decision).has_lost_access(replace(MESSAGE, guild=guild)) is is_lost


async def test_nobody_is_asked_without_need() -> None:
    """Not for what is said by people named by their own id, nor for our own jobs, nor in a direct chat."""
    roll = RoleDirectory(())
    assert await authorize_row(roll, replace(MESSAGE, sender=Sender(id="42", roles=("7",)))) is Role.MEMBER
    assert await authorize_row(roll, replace(MESSAGE, kind=InboundKind.JOB), role=Role.ADMIN) is Role.ADMIN
    direct = replace(MESSAGE, kind=InboundKind.COMMAND, chat_kind=ChatKind.DIRECT, sender=Sender(id="42"))
    assert await authorize_row(roll, direct) is Role.ADMIN
    assert roll.asked == 0
    assert await authorize_row(object()) is Role.MEMBER  # a channel that knows nothing beyond its events
