"""The owner is told: sources see trouble, the book decides what is news to whom, the watch says it.

`book` is pure; `sources` look, `ways` knows where owners can be reached, `wording` finds the words, `watch` brings them
together, `webhook` posts the same to the owner's own monitoring. See docs/monitoring.md, Alerts.
"""

from gateway.alerts.alert_state import Observation as Observation
from gateway.alerts.alert_webhook import AlertWebhook as AlertWebhook
from gateway.alerts.monitor import AlertMonitor as AlertMonitor
from gateway.alerts.owner_directory import OwnerDirectory as OwnerDirectory
