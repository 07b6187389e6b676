"""The kernel's part of the reader's confinement alone: what a decoder in C could try, without Python's audit hook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.attachments.process_confinement import can_confine

ATTEMPTS = """
import ctypes, os, socket, subprocess, sys, threading
from agent.attachments.process_confinement import confine_process
from agent.attachments import process_confinement
if ABI >= 0:  # an older kernel; 0: seccomp alone
    process_confinement.landlock_version = lambda: max(ABI, 1)
if ABI == 0:
    process_confinement._restrict_files = lambda *_: None
victim, x86 = VICTIM, os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
open_folder = os.open("/", os.O_RDONLY)

def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")

KERNEL = {
    "limits of others": lambda: call(302 if x86 else 261, os.getppid(), 7, None, ctypes.create_string_buffer(16)),
    "signal a thread": lambda: call(234 if x86 else 131, os.getppid(), os.getppid(), 0),
    "queue a signal": lambda: call(129 if x86 else 138, os.getppid(), 0, ctypes.create_string_buffer(128)),
    "signal by a descriptor": lambda: call(72 if x86 else 25, open_folder, 8, os.getppid()),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 5),
    "read a priority": lambda: os.getpriority(os.PRIO_PROCESS, os.getppid()),
    "processors": lambda: os.sched_setaffinity(os.getppid(), {0}),
    "read processors": lambda: os.sched_getaffinity(os.getppid()),
    "scheduler": lambda: os.sched_getscheduler(os.getppid()),
    "input and output priority": lambda: call(251 if x86 else 30, 1, os.getppid(), 0),
    "watch": lambda: call(294 if x86 else 26, 0),
    "truncate": lambda: os.truncate(victim, 0),
    "truncate by opening": lambda: os.open(victim, os.O_RDONLY | os.O_TRUNC),
    "write": lambda: open(victim, "w"),
    "append": lambda: os.open(victim, os.O_WRONLY | os.O_APPEND),
    "create": lambda: os.open(victim + "5", os.O_RDONLY | os.O_CREAT),
    "nameless": lambda: os.open(os.path.dirname(victim), os.O_TMPFILE | os.O_RDWR),
    "descriptor of a process": lambda: call(434, os.getppid(), 0),
    "new system call": lambda: call(461, 0),
}
TRIES = {
    **KERNEL,
    "TCP": lambda: socket.socket(),
    "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "Unix": lambda: socket.socketpair(),
    "read": lambda: open(victim).read(),
    "read beside": lambda: os.open("etc/passwd", os.O_RDONLY, dir_fd=open_folder),
    "write": lambda: open(victim, "w"),
    "write ours": lambda: open(sys.prefix + "/planted", "w"),
    "list": lambda: os.listdir(os.path.dirname(victim)),
    "remove": lambda: os.unlink(victim),
    "rename": lambda: os.rename(victim, victim + "2"),
    "link": lambda: os.symlink(victim, victim + "3"),
    "folder": lambda: os.mkdir(victim + "4"),
    "mode": lambda: os.chmod(victim, 0o777),
    "times": lambda: os.utime(victim),
    "attribute": lambda: os.setxattr(victim, "user.x", b"x"),
    "own environment": lambda: open("/proc/self/environ").read(),
    "the gateway's environment": lambda: open(f"/proc/{os.getppid()}/environ").read(),
    "fork": lambda: os._exit(1) if os.fork() == 0 else None,
    "program": lambda: subprocess.run(["id"]),
    "become": lambda: os.execv("/bin/sh", ["sh"]),
    "kill": lambda: os.kill(os.getppid(), 0),
    "leave the group": lambda: os.setsid(),
    "io_uring": lambda: call(425, 1, ctypes.create_string_buffer(120)),
    "mount": lambda: call({"x86_64": 165, "aarch64": 40}[os.uname().machine], b"x", b"/mnt", b"tmpfs", 0, None),
    "namespace": lambda: call({"x86_64": 272, "aarch64": 97}[os.uname().machine], 0x10000000),
    "trace": lambda: call({"x86_64": 101, "aarch64": 117}[os.uname().machine], 16, os.getppid(), 0, 0),
}
assert confine_process([sys.prefix, sys.base_prefix])
FILES = ("read", "read beside", "list", "own environment", "the gateway's environment")  # which Landlock refuses
for name, attempt in TRIES.items():
    if ABI == 0 and name in FILES:
        continue
    try:
        attempt()
    except OSError:
        continue
    print(name)
thread = threading.Thread(target=lambda: print("thread"))
thread.start()
thread.join()
import lxml.html, pypdf, readability
from PIL import Image
print("end")
"""


@pytest.mark.skipif(not can_confine(), reason="needs Landlock (Linux 5.13) on x86-64 or ARM64")
@pytest.mark.parametrize("abi", [-1, 6, 4, 2, 1, 0], ids=["this kernel", "6", "4", "2", "1", "seccomp alone"])
def test_the_kernel_refuses_what_a_decoder_never_needs(tmp_path: Path, abi: int) -> None:
    """No socket, program, signal or namespace, no file but libraries; threads and imports still work."""
    victim = tmp_path / "victim.txt"
    victim.write_text("secret")
    program = ATTEMPTS.replace("VICTIM", repr(str(victim))).replace("ABI", str(abi))
    command = [sys.executable, "-I", "-B", "-c", program]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
    assert done.stderr == ""
    assert done.stdout.split() == ["thread", "end"]
    assert victim.read_text() == "secret"
    assert [each.name for each in tmp_path.iterdir()] == ["victim.txt"]
