"""Checks of how the gateway is run and reached: stop time, open files, public address, metrics."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.home import Home, holder, is_held
from gateway.net.addresses import is_loopback
from gateway.ports.entry_points import in_container
from gateway.settings import Settings

STOP_SECONDS = 30  # of deploy/systemd/parlour.service and docker-compose.yml; Kubernetes has the same by default
_DEFAULT_GRACE = 25
_FEW_FILES, _TOO_FEW_FILES = 1_024, 128


def check_deployment(home: Home, settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Yield findings about the service manager's limits and the web server's address."""
    yield from _stop_time(settings)
    yield from _open_files(home)
    yield from _public_address(settings)
    yield from _metrics(settings, environment)


def _stop_time(settings: Settings) -> Iterator[DoctorFinding]:
    grace = settings.agent.shutdown_grace_seconds
    if grace >= STOP_SECONDS:
        line = (
            f"PARLOUR_AGENT__SHUTDOWN_GRACE_SECONDS={grace:g} is not below the {STOP_SECONDS} s after which systemd"
            f" and compose kill a gateway that stops; set {_DEFAULT_GRACE}, or make sure that TimeoutStopSec of the"
            f" unit, or stop_grace_period of the service, is more than {grace:g} s"
        )
        yield DoctorFinding(FindingLevel.WARN, "stop", line, "grace")


def _open_files(home: Home) -> Iterator[DoctorFinding]:
    limit = open_file_limit(home)
    if limit is None or limit >= _FEW_FILES:
        return
    level = FindingLevel.FAIL if limit < _TOO_FEW_FILES else FindingLevel.WARN
    line = (
        f"only {limit} files may be open at once, which limits connections, platforms and the store; allow"
        f" {_FEW_FILES} or more (LimitNOFILE= in the unit, ulimits: nofile in compose, ulimit -n in a shell)"
    )
    yield DoctorFinding(level, "open files", line)


def open_file_limit(home: Home) -> int | None:
    """Return the hard limit of open files, up to which a start raises its own; None where there is none.

    It is that of the gateway that runs on *home*, otherwise that of this process.
    """
    process = holder(home) if is_held(home) else None
    if process:
        try:
            text = Path(f"/proc/{process}/limits").read_text()
        except OSError:  # another user's, or there is no /proc
            return None
        (values,) = [line.split() for line in text.splitlines() if line.startswith("Max open files")] or [[]]
        return int(values[4]) if len(values) > 4 and values[4].isdigit() else None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _public_address(settings: Settings) -> Iterator[DoctorFinding]:
    parts = urlsplit(settings.web.public_url or "")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        line = (
            "PARLOUR_WEB__PUBLIC_URL starts with http://, so login codes and conversations can be read on their way;"
            ' put a TLS proxy in front and write https:// ("A TLS proxy" in docs/server.md)'
        )
        yield DoctorFinding(FindingLevel.WARN, "web", line, "plain")
    if parts.scheme == "https" and not settings.web.trusted_proxies:
        line = (
            "PARLOUR_WEB__PUBLIC_URL is the address of a TLS proxy, but no proxy is trusted, so that all users count as"
            " one address; set PARLOUR_WEB__TRUSTED_PROXIES to the proxy's address, such as 127.0.0.1"
        )
        yield DoctorFinding(FindingLevel.WARN, "web", line, "proxies")


def _metrics(settings: Settings, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    # Our compose file listens on every address of the container, and publishes it on this machine's loopback alone.
    is_published = settings.web.published_port is not None and in_container(environment)
    if is_loopback(settings.web.host) or settings.web.metrics_token is not None or is_published:
        return
    line = (
        f"the web server listens on {settings.web.host}, but /metrics answers other machines only with a token; set"
        " PARLOUR_WEB__METRICS_TOKEN, or PARLOUR_WEB__HOST=127.0.0.1 if no other machine needs it"
    )
    yield DoctorFinding(FindingLevel.WARN, "web", line, "metrics")
