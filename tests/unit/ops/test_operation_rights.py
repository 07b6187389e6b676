"""Who may call an operation is checked in one place, for the console and for chats."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.composition import open_app
from gateway.control.registry import OPERATIONS
from gateway.errors import UserError
from gateway.events import Role
from gateway.operations import call_from_chat
from gateway.ports.access import DecisionActor
from gateway.settings import load_settings

SENDER = DecisionActor(by="telegram:7", where="telegram:-100", id="t1")


async def test_a_chat_gives_no_more_rights_than_its_role(tmp_path: Path) -> None:
    """An owner decides, under their own name and the turn's id; others and the machine's operations are refused."""
    async with open_app(load_settings({"PARLOUR_HOME": str(tmp_path / "home")}), channels=False) as app:
        for role in (Role.MEMBER, Role.ADMIN):
            with pytest.raises(UserError, match="only an owner of this bot"):
                await call_from_chat(app, "people allow", {"who": "web:bob"}, SENDER, role)
        for name in (name for name, each in OPERATIONS.items() if each.least is None):
            with pytest.raises(UserError, match="only an owner of this bot"):
                await call_from_chat(app, name, {}, SENDER, Role.OWNER)
        with pytest.raises(UserError, match="only an owner of this bot"):  # another chat's memory
            await call_from_chat(app, "memory show", {"chat": "telegram:-200"}, SENDER, Role.ADMIN)
        assert not await app.store.access.audit(limit=9)
        await call_from_chat(app, "people allow", {"who": "web:bob"}, SENDER, Role.OWNER)
        (line,) = await app.store.access.audit(limit=9)
        assert (line.by, line.where, line.id, line.what) == ("telegram:7", "telegram:-100", "t1", "allow")
