"""Everything that an operator can ask, of the gateway and of the rooms behind it."""

from __future__ import annotations

from gateway.app.app import App
from gateway.app.door_operations import DoorOperations
from gateway.app.memory_operations import MemoryOperations
from gateway.app.people_operations import PeopleOperations
from gateway.operations import Operations


def operations(app: App) -> Operations:
    """Return the operations over *app*: those of the gateway, of memory, of people and of the door."""
    return Operations(
        app, {**MemoryOperations(app).named(), **PeopleOperations(app).named(), **DoorOperations(app).named()}
    )
