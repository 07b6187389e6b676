"""Which text is a command, which one, and who may use it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.commands.command import CommandContext, CommandRouter
from gateway.events import InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.text import find_command
from tests.fakes.claimed_turn import turn_of

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)
ROUTER = CommandRouter.load()


def message(text: str, bot: str = "parlour_bot") -> InboundMessage:
    """Return what Ann typed."""
    return InboundMessage(
        key=SessionKey("telegram", "42"),
        message_id="1",
        sender=Sender(id="7", name="Ann"),
        text=text,
        command=find_command(text, bot),
        sent_at=NOW,
        bot=bot,
    )


def context(text: str, role: Role) -> CommandContext:
    """Return a context whose services are never asked."""
    services: Any = None  # the commands used here never ask them
    turn = turn_of(message(text), role=role, scope="people/telegram-42")
    return CommandContext(turn=turn, args="", now=NOW, services=services, commands=ROUTER.commands)


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("/help", "help", ""),
        ("  /HELP  ", "help", ""),
        ("/help@parlour_bot", "help", ""),
        ("/timezone Europe/Berlin", "timezone", "Europe/Berlin"),
        ("!stop", "stop", ""),
        ("@parlour_bot stop", "stop", ""),
        ("@Parlour_Bot /stop", "stop", ""),
        ("/frobnicate now", "frobnicate", "now"),
    ],
)
def test_command_forms(text: str, name: str, args: str) -> None:
    """Slash, bang and mention forms name the same command; an unknown one is still typed as one."""
    typed = ROUTER.parse(message(text))
    assert typed is not None
    assert (typed.name, typed.args) == (name, args)


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd is readable",
        "/home/ann",
        "stop",
        "!important: read this",
        "/new@otherbot",
        "@parlour_bot stop the presses",
        "@somebody stop",
        "what does /help do?",
        "/",
        "//",
        "",
    ],
)
def test_not_a_command(text: str) -> None:
    """Paths, emphasis, other bots' commands and sentences go to the model."""
    assert ROUTER.parse(message(text)) is None


def test_without_a_known_handle_no_mention_is_ours() -> None:
    """A channel that tells no handle never takes /cmd@something for its own."""
    assert ROUTER.parse(message("/help@", bot="")) is None
    assert ROUTER.parse(message("/help@x", bot="")) is None


def test_buttons_and_jobs_are_no_commands() -> None:
    """Only what a person typed is read as a command."""
    typed = message("/help")
    job = replace(typed, message_id="job:x", kind=InboundKind.JOB)
    assert ROUTER.parse(job) is None


def test_control_commands_do_not_wait() -> None:
    """/stop and /status pass the queue, /new keeps its place in the lane, an unknown command is answered at once."""
    control = {each.name for each in ROUTER.commands if each.is_control}
    assert {"stop", "status", "queue", "help"} <= control
    assert not {"new", "retry"} & control
    typed = ROUTER.parse(message("/nwe"))
    assert typed is not None
    assert ROUTER.is_control(typed)


async def test_an_unknown_command_is_met_with_the_nearest() -> None:
    """A slip of the finger gets "did you mean", nonsense gets the way to /help."""
    slip, nonsense = ROUTER.parse(message("/nwe")), ROUTER.parse(message("/xyzzyplugh"))
    assert slip is not None
    assert nonsense is not None
    assert "/new" in (await ROUTER.run(slip, context("/nwe", Role.MEMBER))).text
    assert "/help" in (await ROUTER.run(nonsense, context("/xyzzyplugh", Role.MEMBER))).text


async def test_help_lists_what_the_sender_may_use() -> None:
    """Every command that covers the role is listed with a sentence of the catalogue."""
    typed = ROUTER.parse(message("/help"))
    assert typed is not None
    reply = await ROUTER.run(typed, context("/help", Role.OWNER))
    assert all(f"`/{each.name}`" in reply.text for each in ROUTER.commands)


def test_what_was_passed_on_is_nobodys_command() -> None:
    """A message that somebody else wrote orders nothing, whoever passes it on."""
    assert ROUTER.parse(replace(message("/forget everything"), is_forwarded=True)) is None


@pytest.mark.parametrize(
    ("text", "passes"),
    [("/memory approve e7", True), ("/memory pending", True), ("/memory undo abc", False), ("/memory", False)],
)
def test_approvals_pass_the_queue(text: str, *, passes: bool) -> None:
    """Typed or pressed alike; what is long, or stands on what was said before, waits in its lane."""
    for kind in (InboundKind.MESSAGE, InboundKind.BUTTON):
        typed = ROUTER.parse(replace(message(text), kind=kind))
        assert typed is not None
        assert ROUTER.is_control(typed) is passes
