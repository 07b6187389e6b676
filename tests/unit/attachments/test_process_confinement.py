"""The kernel's part of the reader's confinement alone: what a decoder in C could try, without Python's audit hook."""

from __future__ import annotations

import platform
import signal
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


EVERY_CALL = """
import ctypes, errno, os, sys
from agent.attachments import process_confinement as confinement
confinement._restrict_files = lambda *_: None
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
machine = os.uname().machine
listed = {*confinement._ALLOWED[machine][1], *(call for call, *_ in confinement._BY_VALUE[machine])}
listed |= {call for call, _ in confinement._OPENING[machine]} | {confinement._CLONE[machine]}
listed |= {335, 336} if machine == "x86_64" else set()  # of probes: the kernel filters them nowhere, and ends who calls
listed |= set(confinement._STARTING[machine]) if PROGRAMS else set()
assert confinement.confine_process([sys.prefix, sys.base_prefix], PROGRAMS)
for number in range(1_000):
    if number not in listed:
        failed = libc.syscall(number, -1, -1, -1, -1, -1, -1) == -1
        if not failed or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
            print("call", number, ctypes.get_errno())
prctl, clone = (157, 56) if machine == "x86_64" else (167, 220)
TRIES = {
    "a child of the gateway": (clone, 0x8000 | 17),
    "a traced child": (clone, 0x2000 | 17),
    "a thread in another network": (clone, 0x40000000 | 0x10000 | 0x800 | 0x100),
    "bind another process": (prctl, 62, 2, os.getppid()),
    "let others trace": (prctl, 0x59616D61, -1),
    "more rules": (prctl, 22, 2, -1),
}
for name, arguments in TRIES.items():
    answer = libc.syscall(*arguments, *[0] * (7 - len(arguments)))
    if answer == 0 and name.endswith(("gateway", "child")):
        os._exit(0)
    if answer != -1 or ctypes.get_errno() != errno.EPERM:
        print(name, answer, ctypes.get_errno())
print("end")
"""
OTHER_TABLES = """
import ctypes, mmap, os, sys
from agent.attachments.process_confinement import confine_process
libc = ctypes.CDLL(None, use_errno=True)
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # getpid of 32-bit programs
old = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
assert confine_process([sys.prefix, sys.base_prefix])
libc.syscall(0x40000000 | 39) if TABLE == "x32" else old()
print("alive")
"""


@pytest.mark.skipif(not can_confine(), reason="needs Landlock (Linux 5.13) on x86-64 or ARM64")
@pytest.mark.parametrize("programs", [[], ["/usr/bin/true"]], ids=["reader", "calculator"])
def test_every_call_that_is_not_listed_is_refused(programs: list[str]) -> None:
    """The filter itself answers, whatever the kernel would: io_uring, memory of others, keys, mounts, descriptors.

    Of the listed ones, those about other processes are refused by their arguments.
    """
    program = EVERY_CALL.replace("PROGRAMS", repr(programs))
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert (done.stdout, done.stderr) == ("end\n", "")


@pytest.mark.skipif(not can_confine() or platform.machine() != "x86_64", reason="needs Landlock on x86-64")
@pytest.mark.parametrize("table", ["x32", "i386"])
def test_other_tables_of_calls_end_the_process(table: str) -> None:
    """The numbers of x32 and of 32-bit programs mean other calls."""
    program = OTHER_TABLES.replace("TABLE", repr(table))
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert "alive" not in done.stdout
    assert done.returncode in (-signal.SIGSYS, -signal.SIGSEGV), done.stderr
