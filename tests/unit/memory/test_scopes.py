"""Whose memory it is, decided by typed facts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.base.scopes import person_of, quote, scope_folder, scope_of, transcript_path
from gateway.events import ChatKind, InboundMessage, Sender, SessionKey


def message(key: str = "telegram:42", **fields: Any) -> InboundMessage:
    """Return a message in *key*."""
    return InboundMessage(
        key=SessionKey.parse(key),
        message_id="1",
        sender=fields.pop("sender", Sender(id="42")),
        text="hi",
        sent_at=datetime(2026, 11, 21, tzinfo=UTC),
        **fields,
    )


def test_a_direct_chat_reads_its_persons_scope_whatever_the_bot_is_called() -> None:
    """Two bots of one platform know the same person; the block's name is no part of them."""
    first = scope_of(message("telegram:42"), person_of(message("telegram:42"), "telegram"))
    second = scope_of(message("telegram-work:42"), person_of(message("telegram-work:42"), "telegram"))
    assert first == second == "people/telegram%3a42"


def test_equal_and_similar_ids_are_different_scopes() -> None:
    """Attack 67: one number on two platforms, a group whose id is a user's, `1` and `01`: nobody shares a memory."""
    scopes = [
        scope_of(message(f"{platform}:{chat}"), person_of(message(sender=Sender(id=chat)), platform))
        for platform in ("telegram", "discord")
        for chat in ("42", "1", "01")
    ]
    scopes.append(scope_of(message("telegram:42", chat_kind=ChatKind.GROUP), "telegram%3a42"))
    assert len(set(scopes)) == len(scopes)


def test_a_workspace_is_part_of_a_person() -> None:
    """The same Slack id in two workspaces is two people."""
    sender = Sender(id="U1", team="T1")
    assert person_of(message("slack:D1", sender=sender), "slack") == "slack%3a%541%3a%551"


def test_a_group_and_its_threads_share_the_chats_scope_and_nobodys_private_one() -> None:
    """A thread has its own session and its parent's memory; who speaks does not matter."""
    group = scope_of(message("slack:C1", chat_kind=ChatKind.GROUP), "ann")
    thread = scope_of(message("slack:C1/17.5", chat_kind=ChatKind.GROUP, sender=Sender(id="9")), "bob")
    assert group == thread == f"chats/{quote('slack:C1')}"


def test_shared_isolation_is_the_home_itself(tmp_path: Path) -> None:
    """One person, the layout of the seeds: no scope folders at all."""
    scope = scope_of(message(), "ann", isolation="shared")
    assert scope == ""
    assert transcript_path(tmp_path, scope, "telegram:42") == tmp_path / "sessions" / "telegram%3a42.jsonl"


@pytest.mark.parametrize(
    "scope",
    [
        "people",
        "people/",
        "people/..",
        "people/.x",
        "people/a/b",
        "../x",
        "/etc",
        "chats/A",
        "people/a\n",
        "x/y",
        "people/%2e/../",
    ],
)
def test_what_is_no_scope_has_no_folder(tmp_path: Path, scope: str) -> None:
    """A path is never built from what was not quoted."""
    with pytest.raises(ValueError, match="not a scope"):
        scope_folder(tmp_path, scope)


@pytest.mark.parametrize(
    ("text", "name"),
    [("telegram:42", "telegram%3a42"), ("..", "%2e%2e"), ("A", "%41"), ("a.b", "a.b"), ("", "%"), ("a/b", "a%2fb")],
)
def test_quoting_is_as_the_formats_say(text: str, name: str) -> None:
    """Names written once are found again by every later version."""
    assert quote(text) == name


def test_a_private_thread_shares_neither_its_parents_scope_nor_another_threads() -> None:
    """Fewer people read it, so what is said in it is known in no other place."""
    private = scope_of(message("discord:7/8", chat_kind=ChatKind.GROUP, is_private=True), "ann")
    assert private == "chats/discord%3a7%2f8"
    assert private != scope_of(message("discord:7/9", chat_kind=ChatKind.GROUP), "ann")
    assert private != scope_of(message("discord:7", chat_kind=ChatKind.GROUP), "ann")
