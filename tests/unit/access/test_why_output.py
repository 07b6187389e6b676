"""What `parlour why` prints beside the refusals: an empty list is honest about what it can know."""

from __future__ import annotations

from typing import Any

from gateway.installation import operator_command
from gateway.operations.people import silence_rows
from gateway.text.message_text import strip_control_characters

SINCE = "2026-11-22T08:00:00.5Z"
HEARS = {"running": True, "since": SINCE, "hears": {"slack": True}, "refused_by": {}}
REFUSED = {
    "channel": "slack",
    "chat": "C1",
    "sender": "U1",
    "name": "Mal \x1b[2J",
    "reason": "stranger",
    "words": "nobody has let them in",
    "paste": ["parlour people allow slack:U1"],
    "times": 3,
    "first_at": "2026-11-22T08:01:00Z",
    "last_at": "2026-11-22T08:02:00Z",
}


def printed(*lines: dict[str, Any], channel: str = "", ident: str = "") -> list[str]:
    """Return what is printed for the lines of a gateway."""
    rows = silence_rows(list(lines), {"channel": channel, "id": ident})
    return [strip_control_characters(row) for row in rows]


def test_a_refusal_is_a_line_and_what_to_paste() -> None:
    """When, where, who, why and how often; nothing that a name holds moves the cursor."""
    assert printed(HEARS, REFUSED) == [
        "2026-11-22 08:02:00Z  slack:C1  U1 (Mal [2J): nobody has let them in"
        " (stranger, 3 times since 2026-11-22 08:01:00Z)",
        "    parlour people allow slack:U1",
    ]


def test_an_empty_list_says_since_when_it_is_empty() -> None:
    """Refusals are of this run of the gateway: nothing is claimed about the one before."""
    assert printed(HEARS) == ["no message was rejected by this gateway since its start at 2026-11-22 08:00:00Z"]
    assert printed(HEARS, channel="slack", ident="U7") == [
        "no message of slack U7 was rejected by this gateway since its start at 2026-11-22 08:00:00Z"
    ]


def test_a_channel_that_does_not_hear_is_named() -> None:
    """Silence whose reason is the connection: what the platform said, or where to look."""
    deaf = HEARS | {"hears": {"slack": False, "telegram": None}, "refused_by": {"slack": "the token is refused"}}
    assert printed(deaf, REFUSED)[2:] == [
        "slack is not connected to its platform, so it receives no messages: the token is refused",
        f"telegram has not reached its platform yet, so it receives no messages: see `{operator_command('doctor')}`",
    ]


def test_without_a_gateway_there_is_nothing_to_know() -> None:
    """The list is in the memory of the gateway that runs."""
    assert printed(HEARS | {"running": False, "hears": {}}) == [
        "no gateway runs here; rejections are kept in the memory of a running gateway"
    ]
