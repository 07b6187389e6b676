"""User and password in the address of a server: sent as basic authorization, and never shown."""

from __future__ import annotations

import base64
from urllib.parse import unquote, urlsplit, urlunsplit

_HIDDEN = "***"


def split_credentials(address: str) -> tuple[str, str]:
    """Return *address* without user and password, and the value of Authorization for them; "" if it has none."""
    parts = urlsplit(address)
    _, has_credentials, host = parts.netloc.rpartition("@")
    if not has_credentials:
        return address, ""
    given = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return urlunsplit(parts._replace(netloc=host)), f"Basic {base64.b64encode(given.encode()).decode()}"


def hide_password(address: str) -> str:
    """Return *address* with three asterisks in place of its password, if it has one."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return address
    given, has_credentials, host = parts.netloc.rpartition("@")
    if not has_credentials or ":" not in given:
        return address
    return urlunsplit(parts._replace(netloc=f"{given.partition(':')[0]}:{_HIDDEN}@{host}"))


def restore_password(address: str, original: str) -> str:
    """Return *original* if *address* is how `hide_password` shows it, else *address*."""
    return original if original and address == hide_password(original) else address
