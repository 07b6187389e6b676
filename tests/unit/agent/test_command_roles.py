"""Who may use which command where, as a table: a command that is not in it fails, as does a row that is not true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from agent.commands.command import Command, CommandContext, CommandReply, CommandRouter
from agent.tools.tool_questions import ToolQuestion
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey
from tests.fakes.claimed_turn import turn_of

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
ROUTER = CommandRouter.load()
ROLES = (Role.MEMBER, Role.ADMIN, Role.OWNER)

# For member, admin and owner: `yes` runs, `own` runs on what is the sender's own, `all` on everybody's, `no` is
# refused. A star: an audit line is left. Nobody is less than an admin in a direct chat; it is stated all the same.
OPEN = "yes yes yes"
AUDITED = "yes* yes* yes*"
OWNER = "no* no* yes*"
ADMIN = "no* yes* yes*"
LOOK = "no no yes"  # the owner's, but nothing is decided
OWN = "own all* all*"
OWN_SEEN = "own all all"  # nothing is decided
EVERY = "all all all"

TABLE: dict[str, tuple[str, str]] = {  # what is typed: (direct chat, shared chat)
    "allow 42": (OWNER, OWNER),
    "block 42": (OWNER, OWNER),
    "dream": (OPEN, OPEN),
    "dream-log": (OPEN, OPEN),
    "dream-restore": (OPEN, OPEN),
    "dream-restore abc": (OPEN, ADMIN),
    "export": (OPEN, OPEN),  # in a shared chat it says that it is for direct ones
    "files": (OPEN, OPEN),
    "files restore fabcdefgh": (OPEN, OPEN),  # what is replaced by it can be restored in its turn
    "files empty": (OPEN, ADMIN),
    "forget tea": (EVERY, OWN),
    "forget tea --purge": (EVERY, OWN),
    "forget everything": (OPEN, ADMIN),
    "forget everything yes": (OPEN, ADMIN),
    "help": (OPEN, OPEN),
    "language": (OPEN, OPEN),
    "language de": (OPEN, ADMIN),
    "link": (OPEN, OPEN),  # as /export
    "login": (OPEN, OPEN),
    "logout tracker": (OPEN, OPEN),
    "memory": (OPEN, OPEN),
    "memory log": (OPEN, OPEN),
    "memory diff abc": (OPEN, OPEN),
    "memory why tea": (OPEN, OPEN),
    "memory pending": (OPEN, OPEN),
    "memory undo abc": (OPEN, ADMIN),
    "memory correct tea => coffee": (OPEN, OPEN),  # the line of another member only by an admin
    "memory drop tea": (OPEN, OPEN),  # as to correct it
    "memory remove =abc": (OPEN, OPEN),
    "memory approve abc": (OPEN, ADMIN),
    "memory reject abc": (OPEN, ADMIN),
    "model": (OPEN, OPEN),
    "model fast": (OPEN, ADMIN),
    "as": (OPEN, OPEN),
    "as cook": (OPEN, ADMIN),
    "effort": (OPEN, OPEN),
    "effort high": (OPEN, ADMIN),
    "new": (OPEN, ADMIN),
    "pair": (LOOK, LOOK),
    "pair yes abc": (OWNER, OWNER),
    "people": (LOOK, LOOK),
    "privacy": (OPEN, OPEN),
    "promises": (OPEN, OPEN),
    "quota": (LOOK, LOOK),
    "quota 42 tokens 5": (OWNER, OWNER),
    "queue": (OPEN, OPEN),
    "remember tea": (OPEN, OPEN),
    "retry": (OPEN, OPEN),
    "search tea": (OPEN, OPEN),
    "settings": (OPEN, OPEN),
    "share tea": (OWNER, OWNER),
    "skill": (OPEN, OPEN),
    "skills": (OPEN, OPEN),
    "start": (OPEN, OPEN),
    "status": (OPEN, OPEN),
    "stop": (EVERY, OWN),
    "quiet": (OPEN, OPEN),
    "quiet 22:00-07:00": (OPEN, ADMIN),
    "reminders": (OPEN, OPEN),
    "tasks": (OPEN, OPEN),
    "timezone": (OPEN, OPEN),
    "timezone Europe/Berlin": (OPEN, ADMIN),
    "tools": (OPEN, OPEN),
    "tools last": (EVERY, OWN_SEEN),
    "tools revoke gabcdefgh12": (AUDITED, AUDITED),
    "tools allow qabcdefgh12": (AUDITED, AUDITED),  # by the question: `test_who_may_decide_on_a_call`
    "tools deny qabcdefgh12": (AUDITED, AUDITED),
    "unlink": (OPEN, OPEN),  # as /export
    "unshare tea": (OWNER, OWNER),
    "usage": (OPEN, OPEN),
}


@dataclass(frozen=True, slots=True)
class ChatCase:
    """A kind of chat of one platform."""

    name: str
    key: SessionKey
    kind: ChatKind = ChatKind.GROUP
    is_private: bool = False


PLACES = (
    ChatCase("telegram direct", SessionKey("telegram", "42"), ChatKind.DIRECT),
    ChatCase("telegram group", SessionKey("telegram", "-100")),
    ChatCase("telegram topic", SessionKey("telegram", "-100/7")),
    ChatCase("slack direct", SessionKey("slack", "D1"), ChatKind.DIRECT),
    ChatCase("slack channel", SessionKey("slack", "C1")),
    ChatCase("slack thread", SessionKey("slack", "C1/1712.34")),
    ChatCase("slack direct with several", SessionKey("slack", "G1")),
    ChatCase("discord direct", SessionKey("discord", "900"), ChatKind.DIRECT),
    ChatCase("discord channel", SessionKey("discord", "901")),
    ChatCase("discord thread", SessionKey("discord", "901/902")),
    ChatCase("discord private thread", SessionKey("discord", "901/903"), is_private=True),
    ChatCase("web", SessionKey("web", "owner"), ChatKind.DIRECT),
    ChatCase("console", SessionKey("console", "here"), ChatKind.DIRECT),
)


class StandIn:
    """Stands in for every command, and notes that it ran and on whose behalf."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    async def __call__(self, context: CommandContext) -> CommandReply:
        """Do nothing but note it."""
        self.seen.append(context.may_all)
        return CommandReply(text="done")


class NobodysStaging:
    """Nothing waits, so nothing is about the sender's own words."""

    async def pending_changes(self, _: str) -> list[Any]:
        """Return nothing."""
        return []


class NobodysServices:
    """All that a check of roles may ask."""

    staging = NobodysStaging()


def build_command(text: str, place: ChatCase, kind: InboundKind = InboundKind.COMMAND) -> InboundMessage:
    """Return what a member typed, or pressed, there."""
    return InboundMessage(
        key=place.key,
        message_id="1",
        sender=Sender(id="7"),
        text=f"/{text}",
        command=f"/{text}",
        sent_at=NOW,
        kind=kind,
        chat_kind=place.kind,
        is_private=place.is_private,
    )


def context(message: InboundMessage, role: Role, args: str, scope: str = "chats/x") -> CommandContext:
    """Return a context whose services have nothing to say."""
    services: Any = NobodysServices()
    turn = turn_of(message, role=role, scope=scope)
    return CommandContext(turn=turn, args=args, now=NOW, services=services, commands=())


async def outcome(text: str, place: ChatCase, role: Role, kind: InboundKind = InboundKind.COMMAND, **more: str) -> str:
    """Return what becomes of *text* there, in the table's words."""
    ran = StandIn()
    router = CommandRouter([_replaced(each, ran) for each in ROUTER.commands])
    message = build_command(text, place, kind)
    typed = router.parse(message)
    assert typed is not None
    reply = await router.run(typed, context(message, role, typed.args, **more))
    star = "*" if reply.audit else ""
    if not ran.seen:
        assert reply.is_private
        assert reply.outcome == "refused"
        return f"no{star}"
    (_, need) = next(each for each in ROUTER.commands if each.name == typed.name).needs.of(typed.args)
    word = "yes" if need.others is None else "all" if ran.seen[0] else "own"
    return f"{word}{star}"


def _replaced(command: Command, ran: StandIn) -> Command:
    return replace(command, run=ran)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
async def test_every_command_for_every_role(place: ChatCase) -> None:
    """Each row of the table holds in each kind of chat of each platform, typed and pressed."""
    for text, (direct, shared) in TABLE.items():
        expected = direct if place.kind is ChatKind.DIRECT else shared
        for kind in (InboundKind.COMMAND, InboundKind.BUTTON):
            found = [await outcome(text, place, role, kind) for role in ROLES]
            assert " ".join(found) == expected, f"/{text} in {place.name}"


def _declared() -> Iterator[str]:
    for command in ROUTER.commands:
        yield command.name
        yield from (f"{command.name} {word}" for word in command.needs.words if word != "...")


def test_no_command_is_missing_in_the_table() -> None:
    """A new command, or a new word with a rule of its own, is entered in the table above."""
    rows = [f"{row} " for row in TABLE]
    missing = [name for name in _declared() if not any(row.startswith(f"{name} ") for row in rows)]
    assert not missing
    assert {row.partition(" ")[0] for row in TABLE} == {command.name for command in ROUTER.commands}


@pytest.mark.parametrize(
    "text", ["export", "files empty", "forget everything yes", "memory undo abc", "dream-restore abc"]
)
async def test_one_memory_for_everybody_is_the_owners(text: str) -> None:
    """With `memory.isolation: shared` what takes or changes all of it asks for the owner, in a direct chat too."""
    place = PLACES[0]
    found = [await outcome(text, place, role, scope="") for role in ROLES]
    assert found == ["no*", "no*", "yes*"]


async def test_the_refusal_says_who_may() -> None:
    """A member reads that this chat's admins and the owner may; an admin that the owner may."""
    group = PLACES[1]
    message = build_command("new", group)
    typed = ROUTER.parse(message)
    assert typed is not None
    refused = await ROUTER.run(typed, context(message, Role.MEMBER, ""))
    assert refused.text == "Only an admin of this chat or an owner of this bot can use /new here."
    message = build_command("memory undo abc", group)
    typed = ROUTER.parse(message)
    assert typed is not None
    refused = await ROUTER.run(typed, context(message, Role.MEMBER, typed.args))
    assert "/memory undo here" in refused.text
    message = build_command("share tea", group)
    typed = ROUTER.parse(message)
    assert typed is not None
    refused = await ROUTER.run(typed, context(message, Role.ADMIN, typed.args))
    assert refused.text == "Only an owner of this bot can use /share."


@dataclass(frozen=True, slots=True)
class OneQuestion:
    """Finds one question, and counts how often it is looked for."""

    question: SimpleNamespace
    looks: list[str]

    async def find(self, key: SessionKey, name: str, *, is_owners: bool) -> tuple[SimpleNamespace, None]:
        """Find it."""
        self.looks.append(name)
        return self.question, None

    def claim(self, question: SimpleNamespace, turn: str) -> bool:
        """Say that somebody else decides it already, so that nothing happens."""
        return False


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
@pytest.mark.parametrize("word", ["allow", "deny"])
async def test_who_may_decide_on_a_call(place: ChatCase, word: str) -> None:
    """Its requester, else an admin; of an owner's question an owner. The question is looked for once."""
    is_shared = place.kind is ChatKind.GROUP
    for sender, is_for_owner, refused in (
        ("7", False, ()),
        ("8", False, (Role.MEMBER,) if is_shared else ()),
        ("7", True, (Role.MEMBER, Role.ADMIN)),
    ):
        for role in ROLES:
            approvals = OneQuestion(
                SimpleNamespace(sender=sender, is_for_owner=is_for_owner, is_personal=False, tool="act"), []
            )
            services: Any = SimpleNamespace(approvals=approvals)
            typed = ROUTER.parse(build_command(f"tools {word} qabcdefgh12", place))
            assert typed is not None
            asked = context(build_command(f"tools {word} qabcdefgh12", place), role, typed.args)
            reply = await ROUTER.run(typed, replace(asked, services=services))
            assert reply.outcome == ("refused" if role in refused else "settled")
            assert reply.audit
            assert approvals.looks == ["qabcdefgh12"]


@dataclass(frozen=True, slots=True)
class AllowableQuestion:
    """One question that may be decided; another look would find another one in its place."""

    question: ToolQuestion
    other: ToolQuestion
    looks: list[str]
    allowed: list[ToolQuestion]

    async def find(self, key: SessionKey, name: str, *, is_owners: bool) -> tuple[ToolQuestion, SimpleNamespace]:
        """Find it, and at a second look the other."""
        self.looks.append(name)
        return (self.question if len(self.looks) == 1 else self.other), SimpleNamespace(id="job", scope="s")

    def claim(self, question: ToolQuestion, turn: str) -> bool:
        """Take it."""
        return True

    async def allow(self, question: ToolQuestion, by: str, now: datetime) -> bool:
        """Note the call that runs."""
        self.allowed.append(question)
        return True

    def count(self, state: str) -> None:
        """Count nothing."""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
async def test_the_question_that_was_judged_is_the_one_that_is_allowed(place: ChatCase) -> None:
    """One look serves role and decision: what takes the question's place afterwards is not allowed by its yes."""
    message = build_command("tools allow qabcdefgh12", place)
    question = ToolQuestion(
        id="qabcdefgh12",
        key=str(message.key),
        turn="t",
        sender=message.sender.id,
        sender_name="Ann",
        team="",
        chat_kind=str(place.kind),
        is_private=False,
        guild="",
        is_untyped=False,
        tool="act",
        arguments='{"to": "bob"}',
        schema="s",
        why="tools.why_acts",
        at="2026-11-28T12:00:00+00:00",
    )
    other = replace(question, arguments='{"to": "mallory"}', is_for_owner=True)
    approvals = AllowableQuestion(question, other, [], [])
    services: Any = SimpleNamespace(approvals=approvals)
    typed = ROUTER.parse(message)
    assert typed is not None
    reply = await ROUTER.run(typed, replace(context(message, Role.MEMBER, typed.args), services=services))
    assert reply.settles
    assert reply.ends == ("job",)
    assert (approvals.looks, approvals.allowed) == (["qabcdefgh12"], [question])
