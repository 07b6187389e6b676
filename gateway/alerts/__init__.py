"""Alerts to owners: sources detect problems, the alert state decides on notifications, the monitor sends them.

`alert_state` is pure; `alert_sources` detect, `alert_messages` words the messages, `monitor` combines them,
`alert_webhook` posts the same to the owner's own monitoring (docs/monitoring.md).
"""

from gateway.alerts.alert_webhook import AlertWebhook as AlertWebhook
from gateway.alerts.monitor import AlertMonitor as AlertMonitor
from gateway.alerts.monitor import OwnerDirectory as OwnerDirectory
