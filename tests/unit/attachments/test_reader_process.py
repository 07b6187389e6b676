"""The child has nothing but the file: a decoder that a file took over reaches no network, no program, no other file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agent.attachments import reader_process

# Each is tried in a drop_privilegesd process, as code that a hostile file made run.
ATTEMPTS = """
import ctypes.util, os, socket, subprocess
mine, other = os.environ.get("PATH"), VICTIM
TRIES = {
    "connect": lambda: socket.create_connection(("127.0.0.1", 1)),
    "listen": lambda: socket.socket().bind(("127.0.0.1", 0)),
    "own environment": lambda: open("/proc/self/environ").read(),
    "the gateway's environment": lambda: open(f"/proc/{os.getppid()}/environ").read(),
    "read": lambda: open(other).read(),
    "write": lambda: open(other, "w").write("x"),
    "write low": lambda: os.open(other, os.O_WRONLY | os.O_CREAT),
    "list": lambda: os.listdir(os.path.dirname(other)),
    "remove": lambda: os.unlink(other),
    "rename": lambda: os.rename(other, other + "2"),
    "link": lambda: os.symlink(other, other + "3"),
    "program": lambda: subprocess.run(["id"]),
    "shell": lambda: os.system("id"),
    "kill": lambda: os.kill(os.getppid(), 0),
    "become": lambda: os.execv("/bin/sh", ["sh"]),
    "fork": lambda: os.fork(),
    "more memory": lambda: bytearray(2 << 30),
}
drop_privileges()
assert not mine
for name, attempt in TRIES.items():
    try:
        attempt()
    except (OSError, MemoryError):
        continue
    print(name)
print("end")
"""


def test_a_file_that_takes_over_its_reader_gets_nowhere(tmp_path: Path) -> None:
    """Every attempt is refused, and none leaves a trace."""
    victim = tmp_path / "victim.txt"
    victim.write_text("secret")
    source = Path(reader_process.__file__).read_text("utf-8").partition('\nif __name__ == "__main__":')[0]
    program = source + ATTEMPTS.replace("VICTIM", repr(str(victim)))
    command = [sys.executable, "-I", "-B", "-c", program]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
    assert done.stderr == ""
    assert done.stdout == "end\n"
    assert victim.read_text() == "secret"
    assert [each.name for each in tmp_path.iterdir()] == ["victim.txt"]
