"""Stage 9, deliver: what is committed reaches its chat, in order, once, or visibly marked.

`Deliverer` is the door: it runs the outbox and gives turns their previews. What it holds to is in
FORMATS.md ("Sends") and docs/adr/0003-late-previews.md.
"""

from gateway.delivery.outbox_dispatcher import OutboxDispatcher as OutboxDispatcher
