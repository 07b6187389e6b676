"""Operations of operators, owners and admins by subject, each written once.

`gateway.control.registry` declares them. The command line is built from the declarations, so the modules here import
heavy modules only inside of an operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.control import Line, Operation
from gateway.control.registry import OPERATIONS, bind_group, may_call
from gateway.errors import UserError
from gateway.events import Role
from gateway.operations.gateway import GatewayOperations
from gateway.operations.machine import MachineOperations, UsageOperations
from gateway.operations.mcp import McpOperations
from gateway.operations.memory import MemoryOperations
from gateway.operations.people import PeopleOperations
from gateway.operations.replays import ReplayOperations
from gateway.operations.setup import SetupOperations
from gateway.operations.turns import TaskOperations, TurnOperations
from gateway.ports.access import ACTING, DecisionActor

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime


def build_operations(app: Runtime) -> Mapping[str, Operation]:
    """Return every operation over the gateway *app*, by name."""
    groups = (
        GatewayOperations,
        PeopleOperations,
        MemoryOperations,
        TurnOperations,
        TaskOperations,
        ReplayOperations,
        UsageOperations,
        SetupOperations,
        MachineOperations,
        McpOperations,
    )
    return {name: operation for group in groups for name, operation in bind_group(group(app)).items()}


@dataclass(frozen=True, slots=True)
class SenderRights:
    """The rights of the sender of a command, by their role in its chat."""

    role: Role
    chat: str

    def is_owner(self, _: str) -> bool:
        """Return True if the sender is an owner."""
        return self.role is Role.OWNER

    async def is_admin(self, _: str, chat: str) -> bool:
        """Return True if the sender administers *chat*, which is the chat of the command."""
        return chat == self.chat and self.role.covers(Role.ADMIN)


async def call_from_chat(app: Runtime, name: str, arguments: Line, sender: DecisionActor, role: Role) -> Sequence[Line]:
    """Run the operation *name* for the sender of a command, and return its lines. Raises UserError."""
    if not await may_call(SenderRights(role, sender.where), sender.by, OPERATIONS[name], arguments):
        raise UserError(f"only an owner of this bot may use `{name}`")
    token = ACTING.set(sender)
    try:
        return [line async for line in app.operations[name](arguments)]
    finally:
        ACTING.reset(token)
