"""Alerts to owners: sources detect problems, the alert state decides on notifications, the monitor sends them.

`alert_state` is pure, and words the messages. The sources are declared with the checks that they are of
(`gateway.health.gateway_checks`). `alert_webhook` posts the same to the owner's own monitoring (docs/monitoring.md).
"""
