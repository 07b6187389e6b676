"""One cause in words: for an owner in their language and zone, for the log and the webhook in English and UTC."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_state import NotificationKind
from gateway.events import OutboundKind, OutboundMessage, short_id
from gateway.i18n import FALLBACK, translate
from gateway.i18n.failures import cause_line
from gateway.i18n.formats import format_file_size, format_moment
from gateway.ports import Alert

FORMAT = 1  # of the JSON; a field is added without a new number, and none is taken away or given another meaning
TURN_FAILURES = ("poison", "bug")
# What the platforms and we ourselves call it, in lower case; the first that is found decides.
REASONS = (
    ("blocked", ("blocked", "deactivated", "50007", "user_disabled", "cannot_dm_bot", "can't initiate")),
    ("size", ("larger than", "too large", "too long")),
    ("attempts", ("given up after",)),
    ("outside", ("kicked", "not a member", "not_in_channel", "50001")),
    ("gone", ("chat not found", "channel_not_found", "10003", "is_archived", "chat was deleted", "topic_deleted")),
    ("rights", ("rights", "forbidden", "403", "missing", "restricted", "not allowed", "denied", "no_permission")),
    ("rights", ("admin_required", "topic_closed")),
)


def reason(text: str) -> str:
    """Return which of our sentences says why something was given up; the operator's own words stay where they are."""
    words = text.lower()
    if words in TURN_FAILURES:  # of a message: the name of its failure, and nothing else
        return words
    return next((name for name, signs in REASONS if any(sign in words for sign in signs)), "other")


def channel_of(alert: Alert) -> str:
    """Return the channel whose trouble this is, or ""."""
    family, _, about = alert.cause.partition(".")
    return about if family in ("channel", "delay") else ""


def alert_text(alert: Alert, what: NotificationKind, count: int, *, language: str = FALLBACK, zone: str = "UTC") -> str:
    """Return the message text of *alert*."""
    fields: dict[str, object] = {**alert.fields, "count": count, "since": format_moment(alert.since, zone, language)}
    if "reason" in alert.fields:
        fields["reason"] = translate(f"alerts.because_{alert.fields['reason']}", language)
    if "fault" in alert.fields:
        fields["reason"] = cause_line(str(alert.fields["fault"]), language)
    if "free" in alert.fields:
        fields["free"] = format_file_size(int(alert.fields["free"]), language)
    if "until" in alert.fields:
        fields["until"] = format_moment(datetime.fromisoformat(str(alert.fields["until"])), zone, language)
    if what is NotificationKind.OVER:
        return translate(f"alerts.over_{alert.cause.partition('.')[0]}", language, **fields)
    return translate(alert.line, language, **fields)


def name(alert: Alert, what: NotificationKind, *about: str) -> str:
    """Return ``a`` and 16 base32 characters that are the same whenever the same is said of the same."""
    begun = str(alert.since.timestamp())
    mark = alert.mark if what is NotificationKind.HAPPENED else ""
    again = [str(alert.owners.lost)] if alert.owners.lost else []  # what did not arrive is said anew
    return "a" + short_id("\0".join((alert.cause, what, begun, str(alert.stage), mark, *about, *again)))


def notice(alert: Alert, what: NotificationKind, to: OwnerAddress, *, language: str, zone: str) -> OutboundMessage:
    """Return the message to an owner."""
    return OutboundMessage(
        id=f"{name(alert, what, str(to.key))}.1",
        key=to.key,
        text=alert_text(alert, what, alert.owners.waiting, language=language, zone=zone),
        kind=OutboundKind.NOTICE,
        visible_to=to.visible_to,
    )


def alert_status(alert: Alert, *, is_untold: bool) -> dict[str, Any]:
    """Return the status of a cause as in `parlour status --json`."""
    return {
        "cause": alert.cause,
        "level": alert.level,
        "state": "firing" if alert.stage else "past",
        "since": _utc(alert.since),
        "text": alert_text(alert, NotificationKind.TROUBLE, max(alert.owners.waiting, 1)),
        "told_at": _utc(alert.owners.at) if alert.owners.at is not None else "",
        "told": alert.owners.told,
        "untold": is_untold,
        "lost": alert.owners.lost,
    }


@dataclass(frozen=True, slots=True)
class WebhookOrigin:
    """The gateway that posts."""

    host: str
    version: str

    def alert(self, alert: Alert, what: NotificationKind, at: datetime) -> str:
        """Return the JSON that the webhook gets; docs/monitoring.md describes it."""
        return self._json(
            {
                "kind": "event" if what is NotificationKind.HAPPENED else "alert",
                "id": name(alert, what),
                "cause": alert.cause.partition(".")[0],
                "channel": channel_of(alert) or str(alert.fields.get("channel", "")),
                "level": alert.level,
                "state": "resolved" if what is NotificationKind.OVER else "firing",
                "since": _utc(alert.since),
                "text": alert_text(alert, what, alert.monitor.waiting),
            },
            at,
        )

    def ping(self, firing: tuple[str, ...], at: datetime) -> str:
        """Return the JSON of a sign of life."""
        return self._json({"kind": "ping", "state": "firing" if firing else "resolved", "firing": list(firing)}, at)

    def _json(self, fields: Mapping[str, object], at: datetime) -> str:
        return json.dumps(
            {"format": FORMAT, **fields, "at": _utc(at), "host": self.host, "version": self.version}, ensure_ascii=False
        )


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
