"""Who may speak: by whole ids, in the places an entry names, and nobody by a trick of text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import (
    NO_FACTS,
    AdmissionFacts,
    AdmissionPolicy,
    Admitted,
    AllowEntry,
    GroupPolicy,
    Rejected,
    RejectionReason,
    admit,
    policy_of,
)
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey

NOW = datetime(2026, 11, 21, 21, 0, tzinfo=UTC)


def message(sender: Sender | str = "501", chat: str = "501", **facts: Any) -> InboundMessage:
    """Return a direct message."""
    who = Sender(id=sender) if isinstance(sender, str) else sender
    base = InboundMessage(key=SessionKey("telegram", chat), message_id="1", sender=who, text="hi", sent_at=NOW)
    return replace(base, **facts)


def in_group(sender: Sender | str = "501", chat: str = "-100", **facts: Any) -> InboundMessage:
    """Return a message in a group that is addressed to us."""
    return message(sender, chat, **{"chat_kind": ChatKind.GROUP, "is_addressed": True, **facts})


def policy(*entries: str, group: str = "mention", owners: tuple[str, ...] = ()) -> AdmissionPolicy:
    """Return the policy of a block with these entries."""
    return policy_of("telegram", entries, owners, group)


def role(decision: Admitted | Rejected) -> Role | None:
    """Return the role of somebody admitted."""
    return decision.role if isinstance(decision, Admitted) else None


def reason(decision: Admitted | Rejected) -> RejectionReason | None:
    """Return why somebody was rejected."""
    return decision.reason if isinstance(decision, Rejected) else None


def test_closed_by_default() -> None:
    """Without an entry nobody is heard, and the operator is told what would admit them."""
    decision = admit(message(), policy())
    assert decision == Rejected(reason=RejectionReason.STRANGER, would_admit="501 in channels.telegram.allow_from")


@pytest.mark.parametrize("kind", [kind for kind in InboundKind if kind is not InboundKind.JOB])
def test_every_kind_of_event_is_judged(kind: InboundKind) -> None:
    """Attack 8: a stranger's button, deletion or edit is as little heard as their message."""
    assert reason(admit(message(kind=kind), policy("7"))) is RejectionReason.STRANGER


@pytest.mark.parametrize(
    ("sender", "expected"),
    [
        (Sender(id="501", is_self=True), RejectionReason.SELF),
        (Sender(id="501", is_bot=True), RejectionReason.BOT),
        (Sender(id=""), RejectionReason.NOBODY),
        (Sender(id="501 "), RejectionReason.NOBODY),
        (Sender(id="*"), RejectionReason.NOBODY),
        (Sender(id="7", name="501"), RejectionReason.STRANGER),
        (Sender(id="\uff15\uff10\uff11"), RejectionReason.NOBODY),
    ],
    ids=["self", "bot", "nobody", "blank", "star", "name", "full-width"],
)
def test_nature_and_names_never_admit(sender: Sender, expected: RejectionReason) -> None:
    """Attacks 4-7: ourselves, bots, nobody, and a name equal to an allowed id are refused, in any place."""
    allowed = policy("501", owners=("telegram:501",))
    assert reason(admit(message(sender), allowed)) is expected
    assert reason(admit(in_group(sender), allowed)) is expected


def test_roles_of_those_who_are_admitted() -> None:
    """Admin of one's own chat, the platform's admin in a shared one, the owner everywhere."""
    allowed = policy("501", owners=("telegram:42", "discord:501"))
    assert role(admit(message(), allowed)) is Role.ADMIN
    assert role(admit(in_group(), allowed)) is Role.MEMBER
    assert role(admit(in_group(Sender(id="501", is_admin=True)), allowed)) is Role.ADMIN
    assert role(admit(message("42", "42"), allowed)) is Role.OWNER
    assert role(admit(in_group("42"), allowed)) is Role.OWNER


PLACES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("chat:-100", {}, {}),
    ("guild:9", {"guild": "9"}, {}),
    ("role:3", {"guild": "9"}, {"roles": ("2", "3")}),
]


@pytest.mark.parametrize(("entry", "facts", "person"), PLACES, ids=["chat", "guild", "role"])
def test_a_place_admits_there_only(entry: str, facts: dict[str, Any], person: dict[str, Any]) -> None:
    """role:, guild: and chat: admit in those places; the same person's direct message stays a stranger's."""
    sender = Sender(id="501", **person)
    assert role(admit(in_group(sender, **facts), policy(entry))) is Role.MEMBER
    assert role(admit(in_group(sender, chat="-100/77", **facts), policy(entry))) is Role.MEMBER
    assert reason(admit(message(sender, **facts), policy(entry))) is RejectionReason.STRANGER
    other = in_group(Sender(id="501"), chat="-1001", guild="91")
    assert reason(admit(other, policy(entry))) is RejectionReason.STRANGER


def test_a_team_admits_in_direct_messages_too() -> None:
    """team: is the workspace: its members write to the bot directly as well."""
    member = Sender(id="U1", team="T1")
    assert role(admit(message(member), policy("team:T1"))) is Role.ADMIN
    assert reason(admit(message(replace(member, team="T2")), policy("team:T1"))) is RejectionReason.STRANGER


def test_a_guest_is_a_stranger_unless_named() -> None:
    """A Slack guest is admitted by their own id, by no team and no chat."""
    guest = Sender(id="U1", team="T1", is_guest=True)
    assert reason(admit(in_group(guest, chat="C1"), policy("team:T1", "chat:C1"))) is RejectionReason.GUEST
    assert role(admit(in_group(guest, chat="C1"), policy("U1"))) is Role.MEMBER


def test_the_star_admits_everybody_who_is_somebody() -> None:
    """`*` admits all senders, and still to no bot."""
    assert role(admit(message("9", "9"), policy("*"))) is Role.ADMIN
    assert reason(admit(message(Sender(id="9", is_bot=True)), policy("*"))) is RejectionReason.BOT


def test_group_policies() -> None:
    """mention: only what is addressed to us; open: everything; off: nothing, the owner's words included."""
    overheard = in_group(is_addressed=False)
    assert reason(admit(overheard, policy("501"))) is RejectionReason.NOT_ADDRESSED
    assert role(admit(overheard, policy("501", group="open"))) is Role.MEMBER
    off = policy("501", group="off", owners=("telegram:501",))
    assert reason(admit(in_group(), off)) is RejectionReason.GROUPS_OFF
    assert role(admit(message(), off)) is Role.OWNER


@pytest.mark.parametrize("kind", [InboundKind.BUTTON, InboundKind.COMMAND, InboundKind.DELETION])
def test_what_speaks_to_us_by_itself_needs_no_mention(kind: InboundKind) -> None:
    """A press of our own button, a command of ours and a deletion are for us without our name."""
    assert role(admit(in_group(kind=kind, is_addressed=False), policy("501"))) is Role.MEMBER


def test_paired_people_and_claimed_owners_come_by_facts() -> None:
    """What an owner approved and who claimed ownership is stored, not configured."""
    assert role(admit(message(), policy(), AdmissionFacts(entries=frozenset({AllowEntry.parse("501")})))) is Role.ADMIN
    assert role(admit(message(), policy(), AdmissionFacts(owners=frozenset({"501"})))) is Role.OWNER


def test_local_channels_know_the_owner_by_their_door() -> None:
    """Whoever sits at this machine is the owner; who got a code for a name decides about their own chat alone."""
    local = AdmissionPolicy(channel="web", is_local=True)
    assert role(admit(message("owner", "owner"), local)) is Role.OWNER
    assert admit(message("ann", "ann"), local) == Admitted(role=Role.ADMIN, is_named=True)
    assert role(admit(message("ann", "ann"), replace(local, owners=frozenset({"ann"})))) is Role.OWNER
    assert role(admit(message("ann", "ann"), local, AdmissionFacts(owners=frozenset({"ann"})))) is Role.OWNER
    assert isinstance(admit(message("ann", "ann"), local, AdmissionFacts(blocked_as="telegram:7")), Rejected)
    elsewhere = policy("owner")
    assert role(admit(message("owner", "owner"), elsewhere)) is Role.ADMIN


TRICKS = st.text(alphabet=st.characters(), min_size=0, max_size=8) | st.sampled_from(
    [
        "501\u200b",
        "\u202e105",
        "501\x00",
        "٥٠١",
        "５０１",
        "501 ",
        "+501",
        "0501",
        "501.0",
        "5e1",
        "*",
        "user:501",
        "chat:-100",
    ]
)


@given(TRICKS, TRICKS, TRICKS, st.booleans())
def test_no_text_but_the_id_itself_admits(ident: str, name: str, chat: str, is_group: bool) -> None:
    """Whatever stands in id, name, text and chat: only the exact id, or the exact chat, admits."""
    sender = Sender(id=ident, name=name, team=name, roles=(name,))
    kind = ChatKind.GROUP if is_group else ChatKind.DIRECT
    asked = message(sender, chat or "x", chat_kind=kind, is_addressed=True, text=name, guild=name)
    decision = admit(asked, policy("501", "chat:-100"), NO_FACTS)
    in_the_chat = is_group and asked.key.parent.chat == "-100" and ident.isascii() and ident.isprintable()
    assert isinstance(decision, Rejected) or ident == "501" or in_the_chat


@given(st.text(max_size=6))
def test_an_entry_is_an_id_or_an_error(text: str) -> None:
    """Whatever passes as an entry is printable ASCII; nothing else is quietly made to fit."""
    try:
        entry = AllowEntry.parse(text)
    except ValueError:
        return
    assert entry.id.isascii()
    assert entry.id.isprintable()
    assert " " not in entry.id


def test_group_policy_names_are_the_settings_own() -> None:
    """The words of the settings are the policy's."""
    assert [str(name) for name in GroupPolicy] == ["mention", "open", "off"]


def test_a_deletion_without_a_name_takes_back_what_was_admitted() -> None:
    """Discord names nobody in a deletion; a named stranger's is still a stranger's."""
    nameless = in_group(Sender(id=""), kind=InboundKind.DELETION, text="")
    assert role(admit(nameless, policy())) is Role.MEMBER
    assert reason(admit(in_group("9", kind=InboundKind.DELETION), policy())) is RejectionReason.STRANGER
    assert reason(admit(in_group(Sender(id="")), policy())) is RejectionReason.NOBODY
