"""Turns wait for a store that is down, and for nothing that they hold up themselves."""

from __future__ import annotations

from typing import cast

import pytest

from agent.turn_services import RetryingJournal
from gateway.errors import ScopeReplaced
from gateway.events import SessionKey
from gateway.ports.journal import Journal, SessionRow


class RefusingJournal:
    """A journal whose turns have read memory that another gateway has changed."""

    async def session(self, key: SessionKey) -> SessionRow:
        """Refuse, as every commit does while the turn has its scope in use."""
        raise ScopeReplaced("another gateway has changed the memory of people/ann as well")


async def test_a_turn_whose_memory_was_replaced_waits_for_no_store() -> None:
    """It runs again: while it waits it has the scope in use, which is why it is refused."""
    journal = RetryingJournal(cast("Journal", RefusingJournal()))
    with pytest.raises(ScopeReplaced):
        await journal.session(SessionKey("telegram", "42"))
