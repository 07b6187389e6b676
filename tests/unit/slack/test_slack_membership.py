"""Events that are nobody's words: where we are, and who somebody is now. Read from payloads as Slack documents them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.slack.parse import SlackBotIdentity, changed_user, chat_of, parse_membership, user_of
from gateway.errors import UnreadableEvent
from gateway.events import Sender
from gateway.ports.channel import MembershipChange

PAYLOADS = Path(__file__).parents[2] / "payloads" / "slack"
ME = SlackBotIdentity(user="U0PARLOUR", bot="B0PARLOUR", team="T0HOME", handle="parlour")
HERE = MembershipChange(
    channel="slack", id="place/Ev40", chat="C0ROOM", team="T0HOME", by=Sender(id="U0BOB", team="T0HOME"), is_gone=False
)
GONE = MembershipChange(
    channel="slack", id="place/Ev42", chat="C0ROOM", team="T0HOME", by=Sender(id="U0BOB", team="T0HOME"), is_gone=True
)
PLACES = {"member_joined_channel": HERE, "channel_left": GONE}
# Who did it, as far as that is told before anybody reads it.
USERS = {
    "message_im": "U0ANN",
    "app_mention": "U0BOB",
    "message_changed_by_person": "U0BOB",
    "slash_own": "U0ANN",
    "block_actions": "U0BOB",
    "user_change": "",
    "channel_left": "",
}


def payload(name: str) -> dict[str, Any]:
    """Return a captured payload."""
    found: dict[str, Any] = json.loads((PAYLOADS / f"{name}.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("name", sorted(path.stem for path in PAYLOADS.glob("*.json")))
def test_a_place_is_told_by_what_is_said_of_us_alone(name: str) -> None:
    """Every captured payload: we were added, we are gone, or it is no such event; a person who joins is none."""
    assert parse_membership(payload(name), channel="slack", bot=ME) == PLACES.get(name)
    assert changed_user(payload(name)) == ("U0EVE" if name == "user_change" else "")


@pytest.mark.parametrize(("name", "user"), USERS.items())
def test_who_did_it_is_told_before_it_is_read(name: str, user: str) -> None:
    """So that a look-up begins at once: of the author of an edit, not of Slack who tells it."""
    assert user_of(payload(name)) == user


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "user", "ts"]), inner),
    max_leaves=6,
)
KINDS = st.sampled_from(["member_joined_channel", "channel_left", "group_left", "user_change", "message"]) | JSON


@given(KINDS, JSON, JSON, JSON)
def test_no_shape_breaks_what_is_read_beforehand(kind: Any, user: Any, channel: Any, inviter: Any) -> None:
    """Whatever comes: a place, none, or Unreadable; texts, or nothing."""
    body = {"event": {"type": kind, "user": user, "channel": channel, "inviter": inviter, "message": user}}
    for each in (body, {"event": user}, {"user": user, "user_id": channel}):
        assert all(isinstance(found, str) for found in (user_of(each), changed_user(each), chat_of(each)))
        try:
            parse_membership(each, channel="slack", bot=ME)
        except UnreadableEvent as error:
            assert str(error).endswith("without a channel")  # noqa: PT017 - it may raise or not
