"""Operations of the gateway by subject: what operators, owners and admins do, each written once.

`gateway.control.registry` declares them. The command line is built from the declarations, so the modules here import
heavy modules only inside of an operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.control import Operation
from gateway.control.registry import bind_group
from gateway.operations.gateway import GatewayOperations
from gateway.operations.machine import MachineOperations
from gateway.operations.memory import MemoryOperations
from gateway.operations.people import PeopleOperations
from gateway.operations.setup import SetupOperations
from gateway.operations.turns import TurnOperations
from gateway.operations.usage import UsageOperations

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime


def build_operations(app: Runtime) -> Mapping[str, Operation]:
    """Return every operation over the gateway *app*, by name."""
    groups = (
        GatewayOperations,
        PeopleOperations,
        MemoryOperations,
        TurnOperations,
        UsageOperations,
        SetupOperations,
        MachineOperations,
    )
    return {name: operation for group in groups for name, operation in bind_group(group(app)).items()}
