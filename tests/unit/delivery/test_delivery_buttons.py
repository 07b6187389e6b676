"""Choices: buttons below the last text where a channel has them, commands in the text where it has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.delivery.chat_delivery import placeholder
from gateway.delivery.part_planner import PartPlanner
from gateway.events import ChatKind, MessageButton, OutboundMessage
from gateway.ports.channel import ChannelCapabilities
from tests.fakes.memory_channel import FILING, FakeChannel
from tests.fakes.turns import ANN
from tests.unit.delivery.conftest import DeliveryGateway, OpensGateway
from tests.unit.delivery.test_delivery_files import file

CHOICES = (
    MessageButton("Yes", "/memory approve e7"),
    MessageButton("No", "/memory reject e7"),
    MessageButton("More", "/memory pending", 1),
)
QUESTION = OutboundMessage(id="t1.1", key=ANN, text="Shall I?", choices=CHOICES, settles=True)
COMMANDS = "Shall I?\n\n- Yes: `/memory approve e7` · No: `/memory reject e7`\n- More: `/memory pending`"


def cutter(gateway: DeliveryGateway, capabilities: ChannelCapabilities) -> PartPlanner:
    """Return what cuts for a channel of such abilities."""
    return PartPlanner(FakeChannel(gateway.platform, capabilities=capabilities), gateway.deliverer._context)


async def test_buttons_stand_below_the_last_text(opens: OpensGateway) -> None:
    """Not below what comes before it, nor on a file; what settles a press is said by the first part."""
    gateway = await opens(FILING)
    cut = cutter(gateway, replace(FILING, choices=3, text_limit=40))
    parts = cut.plan_parts(replace(QUESTION, text="so many words " * 5, attachments=(file(gateway=gateway),)), None)
    assert len(parts) > 2
    assert [bool(part.choices) for part in parts] == [*(False for _ in parts[2:]), True, False]
    assert parts[-2].choices == CHOICES
    assert [part.settles for part in parts] == [True, *(False for _ in parts[1:])]


@pytest.mark.parametrize("room", [0, 2])
async def test_where_there_are_too_few_the_text_says_the_commands(opens: OpensGateway, room: int) -> None:
    """All of them or none: half of a question's answers would be a trap."""
    gateway = await opens(FILING)
    (part,) = cutter(gateway, replace(FILING, choices=room)).plan_parts(QUESTION, None)
    assert part.payload == COMMANDS
    assert not part.choices


@pytest.mark.parametrize("stands_there", [True, False])
async def test_a_private_answer_has_buttons_only_in_the_chat_that_they_are_about(
    opens: OpensGateway, *, stands_there: bool
) -> None:
    """In a chat of its own the same command would mean that chat."""
    gateway = await opens(FILING)
    cut = cutter(gateway, replace(FILING, choices=3, private_choices=stands_there))
    (part,) = cut.plan_parts(replace(QUESTION, visible_to="ann", chat_kind=ChatKind.GROUP), None)
    assert bool(part.choices) is stands_there
    assert ("/memory approve" in part.payload) is not stands_there


async def test_a_placeholder_has_no_buttons(opens: OpensGateway) -> None:
    """`delivery.once: strict` puts three dots first; nobody can press what is not there yet."""
    gateway = await opens(FILING)
    (part,) = cutter(gateway, replace(FILING, choices=3)).plan_parts(QUESTION, None)
    blank = placeholder(part, "en")
    assert not blank.choices
    assert not blank.settles


@pytest.mark.parametrize(
    ("label", "command"),
    [
        ("", "/help"),
        ("x" * 41, "/help"),
        ("Yes", "help"),
        ("Yes", "/" + "x" * 64),
        ("Yes", "/memory approve é"),
        ("Yes", "/a\nb"),
    ],
)
def test_what_no_platform_could_carry_is_no_choice(label: str, command: str) -> None:
    """64 printable ASCII characters that begin a command; and a label that can be read."""
    with pytest.raises(ValueError, match="button"):
        MessageButton(label, command)
