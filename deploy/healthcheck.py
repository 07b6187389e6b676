"""Ask the gateway in this container whether it is ready. Standard library only; run with `python -I`.

Importing the gateway, or even an HTTP library, would cost more CPU every 30 seconds than answering.
"""

import os
import socket
import sys

TIMEOUT = 5.0  # seconds


def main() -> int:
    """Return 0 when GET /readyz says 200."""
    host = os.environ.get("PARLOUR_WEB__HOST", "127.0.0.1")
    port = int(os.environ.get("PARLOUR_WEB__PORT") or 8787)
    # Bound to every address, the gateway answers on this machine's own.
    there = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared with, not bound
    name = f"[{there}]" if ":" in there else there
    try:
        with socket.create_connection((there, port), timeout=TIMEOUT) as connection:
            connection.sendall(f"GET /readyz HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
            answer = connection.recv(256)
    except OSError as wrong:
        print(f"not ready: {wrong}")
        return 1
    status = answer.split(b"\r\n", 1)[0].decode("ascii", "replace")
    print(status)
    return 0 if status.split(" ")[1:2] == ["200"] else 1


if __name__ == "__main__":
    sys.exit(main())
