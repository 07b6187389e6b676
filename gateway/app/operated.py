"""Everything that an operator can ask, of the gateway and of the rooms behind it."""

from __future__ import annotations

from gateway.app.access_operations import AccessOperations
from gateway.app.admission_operations import AdmissionOperations
from gateway.app.app import GatewayApp
from gateway.app.memory_operations import MemoryOperations
from gateway.app.people_operations import PeopleOperations
from gateway.app.usage_operations import UsageOperations
from gateway.app.web_operations import WebOperations
from gateway.operations import GatewayOperations


def operations(app: GatewayApp) -> GatewayOperations:
    """Return the operations over *app*: those of the gateway, of memory, of people, of the door and of usage."""
    rooms = (
        MemoryOperations(app),
        PeopleOperations(app),
        AccessOperations(app),
        AdmissionOperations(app),
        UsageOperations(app),
        WebOperations(app),
    )
    return GatewayOperations(app, {name: operation for room in rooms for name, operation in room.by_name().items()})
