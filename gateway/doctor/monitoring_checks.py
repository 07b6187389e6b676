"""Checks by real calls to what watches the gateway: the alert webhook and the collector of OpenTelemetry."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.net.web_credentials import hide_password
from gateway.settings import Settings

if TYPE_CHECKING:
    import httpx

_WITHIN = 5.0  # seconds
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"  # is used as it is
_TRACES_PATH = "/v1/traces"  # is appended to the other


async def check_monitoring(settings: Settings, environment: Mapping[str, str]) -> list[DoctorFinding]:
    """Call the alert webhook and the collector that are set, both at once. Nothing arrives there."""
    calls = []
    if settings.alert_url is not None:
        calls.append(_check_webhook(settings.alert_url.get_secret_value(), settings.proxy_address))
    if settings.otel.enabled:
        calls.append(_check_collector(environment, settings.proxy_address))
    return list(await asyncio.gather(*calls))


async def _check_webhook(url: str, proxy: str) -> DoctorFinding:
    # A service may take every GET, HEAD or POST for a sign of life; OPTIONS asks for nothing. Any answer will do.
    result = await _call("OPTIONS", url, proxy)
    if isinstance(result, str):
        line = (
            f"the server of PARLOUR_ALERT_URL cannot be reached ({result}), so alerts are posted nowhere; correct the"
            " address, or remove it"
        )
        return DoctorFinding(FindingLevel.WARN, "alerts", line, "webhook")
    return DoctorFinding(FindingLevel.OK, "alerts", "the server of PARLOUR_ALERT_URL answers", "webhook")


async def _check_collector(environment: Mapping[str, str], proxy: str) -> DoctorFinding:
    """Export nothing to the collector, as the exporter exports spans."""
    name = _TRACES_ENDPOINT if environment.get(_TRACES_ENDPOINT) else _ENDPOINT
    base = environment.get(name) or "http://localhost:4318"
    url = base if name == _TRACES_ENDPOINT else f"{base.rstrip('/')}{_TRACES_PATH}"
    shown = hide_password(base)
    if not _is_address(base):
        line = f"{name}={shown} is not an address; write it with http:// or https://, such as http://localhost:4318"
        return DoctorFinding(FindingLevel.WARN, "otel", line, "collector")
    headers = {"Content-Type": "application/x-protobuf"}
    for pair in environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(","):
        field, has_value, value = pair.partition("=")
        headers |= {unquote(field.strip()): unquote(value.strip())} if has_value else {}
    result = await _call("POST", url, proxy, headers, environment.get("OTEL_EXPORTER_OTLP_CERTIFICATE", ""))
    if result == 200:
        return DoctorFinding(FindingLevel.OK, "otel", f"the collector at {shown} accepts traces", "collector")
    wrong = f"answers with status {result}" if isinstance(result, int) else f"cannot be reached ({result})"
    mend = "OTEL_EXPORTER_OTLP_HEADERS" if result in (401, 403) else f"{name}: OTLP over HTTP, by default port 4318"
    line = f"the collector at {shown} {wrong}, so traces and metrics are lost; correct {mend}"
    return DoctorFinding(FindingLevel.WARN, "otel", line, "collector")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


async def _call(
    method: str, url: str, proxy: str, headers: Mapping[str, str] | None = None, certificate: str = ""
) -> int | str:
    """Return the status of the answer, or the error in a word. It contains no part of *url*."""
    import httpx

    from gateway.net.httpx_proxy import transport

    try:
        verify = ssl.create_default_context(cafile=certificate) if certificate else True
        way: httpx.AsyncBaseTransport = transport(proxy, verify=verify)
        # The body of the response is not needed, and may be endless.
        async with (
            asyncio.timeout(_WITHIN),
            httpx.AsyncClient(timeout=_WITHIN, transport=way) as client,
            client.stream(method, url, headers=dict(headers or {}), content=b"") as answer,
        ):
            return answer.status_code
    except TimeoutError:
        return f"no answer within {_WITHIN:.0f} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return type(error).__name__
