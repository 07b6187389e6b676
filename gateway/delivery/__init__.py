"""Stage 9, deliver: committed messages reach their chat in order, once, or marked as possible repeats.

`OutboxDispatcher` is the entry point: it runs the outbox and gives turns their previews. See
docs/guarantees.md and docs/adr/0005-strict-placeholders.md.
"""

from gateway.delivery.outbox_dispatcher import OutboxDispatcher as OutboxDispatcher
from gateway.delivery.part_planner import DeliveryContext as DeliveryContext
