"""The container's probe: standard library only, ready is 0 and everything else is 1."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy" / "healthcheck.py"


def probe(port: int) -> int:
    """Run the script as the image does; return its exit code."""
    everywhere = "0.0.0.0"  # noqa: S104 - what the container is told; nothing is bound here
    environment = {"PATH": os.environ["PATH"], "PARLOUR_WEB__HOST": everywhere, "PARLOUR_WEB__PORT": str(port)}
    command = [sys.executable, "-I", str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode  # noqa: S603 - ours


def answer_once(listener: socket.socket, status: str, asked: list[bytes]) -> None:
    """Answer one request with a status."""
    connection, _ = listener.accept()
    with connection:
        asked.append(connection.recv(4096))
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())


@pytest.mark.parametrize(("status", "code"), [("200 OK", 0), ("503 Service Unavailable", 1), ("421 Misdirected", 1)])
def test_it_asks_readyz_on_this_machine(status: str, code: int) -> None:
    """A gateway bound to every address is asked on loopback, by a Host that its page accepts."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = threading.Thread(target=answer_once, args=(listener, status, asked))
        server.start()
        assert probe(port) == code
        server.join()
    assert asked[0].startswith(b"GET /readyz HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{port}".encode() in asked[0]


def test_nobody_there_is_not_ready() -> None:
    """A gateway that does not listen is unhealthy, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert probe(port) == 1


def test_it_imports_nothing_of_ours() -> None:
    """It runs every 30 seconds: no import beyond os, socket and sys."""
    imports = [line for line in SCRIPT.read_text().splitlines() if line.startswith(("import", "from"))]
    assert imports == ["import os", "import socket", "import sys"]
