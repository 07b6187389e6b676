"""The owner is told: sources see trouble, the book decides what is news to whom, the watch says it.

`book` is pure; `sources` look, `ways` knows where owners can be reached, `wording` finds the words, `watch` brings them
together, `webhook` posts the same to the owner's own monitoring. See docs/operating.md, Alerts.
"""

from gateway.alerts.book import Seen as Seen
from gateway.alerts.watch import Watch as Watch
from gateway.alerts.ways import Ways as Ways
from gateway.alerts.webhook import Webhook as Webhook
