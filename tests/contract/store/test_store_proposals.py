"""Changes that wait for a yes: each once, changed only as they were read, and never those of another scope."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.errors import StoreUnavailable
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.memory import MemoryProposal
from gateway.store import proposals as statements
from gateway.store.proposals import SqlProposals
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.memory import SCOPE, START

OTHER = "people/telegram%3a43"
ROOM = "chats/telegram%3a-100"
LATER = START + timedelta(days=14)


def made(name: str, at: int = 0, **body: Any) -> MemoryProposal:
    """Return a proposal of the minute *at*."""
    return MemoryProposal(name=name, at=START + timedelta(minutes=at), expires_at=LATER, body={"entry": name, **body})


async def names(store: SqlStore, scope: str = SCOPE) -> list[str]:
    """Return what waits in a scope."""
    return [each.name for each in await store.proposals.pending(scope, START)]


async def test_a_proposal_stays_as_it_was_stored(backend: StoreBackend) -> None:
    """Whatever is in it, also after a kill; the oldest first, and each name once."""
    store = await backend.open()
    strange = {"text": "a\0b \ud800 é\u2028", "list": [1, None, {"x": "\ud83d\ude00"}]}
    await store.proposals.put(SCOPE, [made("b", 2, **strange), made("a", 1)])
    await store.proposals.put(SCOPE, [replace(made("a", 0), body={"entry": "another"}), made("c", 3)])
    store = await backend.reopen()
    found = await store.proposals.pending(SCOPE, START)
    assert [each.name for each in found] == ["a", "b", "c"]
    assert found[0] == made("a", 1)
    assert found[1].body["text"] == strange["text"]
    assert not await names(store, OTHER)


async def test_an_expired_proposal_is_not_pending_and_is_removed_later(backend: StoreBackend) -> None:
    """Whether or not somebody looks at its scope."""
    store = await backend.open()
    await store.proposals.put(SCOPE, [made("a"), replace(made("b"), expires_at=LATER + timedelta(days=9999))])
    assert [each.name for each in await store.proposals.pending(SCOPE, LATER)] == ["a", "b"]
    assert [each.name for each in await store.proposals.pending(SCOPE, LATER + timedelta(seconds=1))] == ["b"]
    backend.wall.advance(days=15)
    await store.prune()
    assert await names(store) == ["b"]


async def test_only_what_is_as_it_was_read_is_replaced(store: SqlStore) -> None:
    """Of two decisions at the same time one is taken."""
    await store.proposals.put(SCOPE, [made("a", text="\ud83d\ude00")])
    [old] = await store.proposals.pending(SCOPE, START)
    new = replace(old, body={**old.body, "asked": "t1"})
    assert await store.proposals.replace(SCOPE, old, new)
    assert not await store.proposals.replace(SCOPE, old, replace(old, body={}))
    assert not await store.proposals.replace(OTHER, new, old)
    assert await store.proposals.pending(SCOPE, START) == [new]


async def test_a_rewriting_sees_what_was_changed_at_the_same_time(store: SqlStore) -> None:
    """It is asked again for that one, and expired ones are not left out."""
    await store.proposals.put(SCOPE, [made("a"), made("b"), replace(made("old"), expires_at=START - timedelta(days=1))])
    [first, _] = await store.proposals.pending(SCOPE, START)
    seen: list[str] = []

    async def change_first() -> None:
        assert await store.proposals.replace(SCOPE, first, replace(first, body={"entry": "a", "asked": "t1"}))

    def change(proposal: MemoryProposal) -> MemoryProposal | None:
        seen.append(f"{proposal.name}{proposal.body.get('asked', '')}")
        return None if proposal.name == "b" else replace(proposal, body={**proposal.body, "seen": True})

    submit = store._engine.writer.submit
    calls = 0

    async def submit_late(operation: Callable[..., Any], *rest: Any, **fields: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # between its reading and its writing
            store._engine.writer.submit = submit  # type: ignore[method-assign]
            await change_first()
        return await submit(operation, *rest, **fields)

    store._engine.writer.submit = submit_late  # type: ignore[assignment, method-assign]
    assert await store.proposals.rewrite(SCOPE, change) >= 3
    assert {"a", "at1", "b", "old"} <= set(seen)
    assert [each.body for each in await store.proposals.pending(SCOPE, START)] == [
        {"entry": "a", "asked": "t1", "seen": True}
    ]


async def test_a_failed_write_is_reported(backend: StoreBackend) -> None:
    """Nothing is said to wait that is not stored."""
    store = await backend.open()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.proposals.put(SCOPE, [made("a")])


async def test_a_link_takes_the_proposals_along_and_an_unlink_those_of_the_account(store: SqlStore) -> None:
    """By the session that is asked, without one by the person; names that both have are one proposal."""
    people = [PlatformAccount(kind="telegram", id=each) for each in ("42", "43")]
    ours, theirs = [f"people/{each.name}" for each in people]
    for account, scope in zip(people, (ours, theirs), strict=True):
        await store.links.note_chat(SessionKey("telegram", account.id), account)
        session = f"telegram:{account.id}"
        await store.proposals.put(scope, [made("both"), made(f"in-{account.id}", 1, session=session)])
        await store.proposals.put(scope, [made(f"of-{account.id}", 2, person=account.name)])
    await store.links.link(ScopeMove(id="l", kind="link", source=theirs, target=ours, at=START))
    assert await names(store, ours) == ["both", "in-42", "in-43", "of-42", "of-43"]
    assert await names(store, theirs) == []
    await store.links.unlink(ScopeMove(id="u", kind="unlink", source=ours, target=theirs, at=START, account=people[1]))
    assert await names(store, ours) == ["both", "in-42", "of-42"]
    assert await names(store, theirs) == ["in-43", "of-43"]


async def test_what_was_adopted_is_noted(backend: StoreBackend) -> None:
    """Once for all, after everything was."""
    store = await backend.open()
    assert not await store.proposals.is_adopted()
    await store.proposals.mark_adopted()
    await store.proposals.mark_adopted()
    assert await (await backend.reopen()).proposals.is_adopted()


# -- one scope -----------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[SqlProposals], Awaitable[object]]] = {
    "pending": lambda store: store.pending(ROOM, START),
    "put": lambda store: store.put(ROOM, [made("canary", text="mine")]),
    "replace": lambda store: store.replace(ROOM, made("canary"), made("canary", text="mine")),
    "rewrite": lambda store: store.rewrite(ROOM, lambda _: None),
    "remove": lambda store: store.remove(ROOM, "canary"),
    "clear": lambda store: store.clear(ROOM),
}
OF_ALL = {"find_in_groups"}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_scope_has_nothing_of_another(store: SqlStore, name: str) -> None:
    """Not even under the same name: neither is it read, nor changed."""
    other = f"{ROOM}/x"
    await store.proposals.put(other, [made("canary")])
    assert "canary" not in str(await OPERATIONS[name](store.proposals))
    assert await store.proposals.pending(other, START) == [made("canary")]


async def test_a_name_is_found_in_groups_alone(store: SqlStore) -> None:
    """A person's direct chat answers what a group asked it; what waits for other people is not found."""
    for scope in (SCOPE, ROOM, "shared", ""):
        await store.proposals.put(scope, [made("x")])
    assert await store.proposals.find_in_groups("x") == [(ROOM, made("x"))]
    assert await store.proposals.find_in_groups("y") == []


def test_every_operation_is_tried_with_another_scope() -> None:
    """One that is added needs a line above."""
    assert {name for name in vars(SqlProposals) if not name.startswith("_")} == {*OPERATIONS, *OF_ALL}


def test_every_statement_names_the_scope() -> None:
    """What reads or changes proposals says whose."""
    found: Sequence[tuple[str, str]] = [
        (name, text)
        for name, text in vars(statements).items()
        if isinstance(text, str) and re.search(r"\b(FROM|INTO|UPDATE) proposal\b", text)
    ]
    assert len(found) > 7
    assert [name for name, text in found if "scope" not in text] == []
