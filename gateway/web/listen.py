"""The error text for an address that cannot be bound, at a start and in doctor."""

from __future__ import annotations

import errno


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """Return the line for an address that cannot be listened on."""
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken: stop what listens on {where}, or set PARLOUR_WEB__PORT to a free port"
    if error.errno == errno.EACCES:
        return f"port {port} may not be opened by this user: set PARLOUR_WEB__PORT to one above 1023"
    return f"cannot listen on {where} ({error.strerror}): set PARLOUR_WEB__HOST to an address of this machine"
