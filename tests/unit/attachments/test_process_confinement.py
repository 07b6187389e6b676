"""The kernel's part of the reader's confinement alone: what a decoder in C could try, without Python's audit hook."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.attachments.process_confinement import (
    FACTS_ARE_SEEN,
    FILES_ARE_READ,
    PRIVATE_ROOT,
    can_confine,
    landlock_version,
    probe_confinement,
)

ATTEMPTS = """
import ctypes, fcntl, os, socket, subprocess, sys, threading
from agent.attachments.process_confinement import confine_process
from agent.attachments import process_confinement
if ABI >= 0:  # an older kernel; 0: without Landlock
    process_confinement.landlock_version = lambda: ABI
if not IS_PRIVATE:
    process_confinement._enter_private_root = lambda *_: False
victim, x86 = VICTIM, os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
open_folder, open_file = os.open("/", os.O_RDONLY), os.open(victim, os.O_RDONLY)

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
    "processor time": lambda: call(228 if x86 else 113, (~os.getppid() << 3) | 2, ctypes.create_string_buffer(16)),
    "lock": lambda: fcntl.lockf(open_file, fcntl.LOCK_SH | fcntl.LOCK_NB),
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
assert confine_process()
# What Landlock refuses. A private root refuses them too, but not by a folder that was open before.
FILES = ["read beside"]
if not IS_PRIVATE:
    FILES += ["read", "list", "own environment", "the gateway's environment"]
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


@pytest.mark.skipif(not landlock_version(), reason="needs Landlock (Linux 5.13)")
@pytest.mark.parametrize(
    ("abi", "is_private"),
    [(-1, True), (-1, False), (6, False), (4, False), (2, False), (1, False), (0, True), (0, False)],
    ids=["this kernel", "no private root", "6", "4", "2", "1", "no Landlock", "seccomp alone"],
)
def test_the_kernel_refuses_what_a_decoder_never_needs(tmp_path: Path, abi: int, *, is_private: bool) -> None:
    """No socket, program, signal or namespace, no file but libraries; threads and imports still work.

    Each older tier is tried without the newer ones, so that it holds alone.
    """
    if is_private and PRIVATE_ROOT not in probe_confinement():
        pytest.skip("no private root can be had here")
    victim = tmp_path / "victim.txt"
    victim.write_text("secret")
    program = ATTEMPTS.replace("VICTIM", repr(str(victim))).replace("ABI", str(abi))
    program = program.replace("IS_PRIVATE", str(is_private))
    command = [sys.executable, "-I", "-B", "-c", program]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
    assert done.stderr == ""
    assert done.stdout.split() == ["thread", "end"]
    assert victim.read_text() == "secret"
    assert [each.name for each in tmp_path.iterdir()] == ["victim.txt"]


FACTS = """
import ctypes, os, struct, sys
from pathlib import Path
from agent.attachments import process_confinement as confinement
libc, victim, gateway = ctypes.CDLL(None, use_errno=True), VICTIM, os.getppid()
if REFUSED == "root and Landlock":
    confinement.landlock_version = lambda: 0
if REFUSED.startswith("root"):
    confinement._enter_private_root = lambda *_: False
if REFUSED == "mount":
    confinement._mount = lambda *_: confinement._check(-1)
if REFUSED == "pivot_root":
    confinement._PIVOT_ROOT = {os.uname().machine: 4_000}
if USER:
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    libc.prctl(4, 1)  # PR_SET_DUMPABLE: as if that user had started this program
if REFUSED == "capset":
    number = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
    rules = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(rules)
    libc.prctl(38, 1, 0, 0, 0)
    assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)), 0, 0) == 0
LOOKS = {
    "facts": lambda: os.stat(victim),
    "facts of a link": lambda: os.lstat(victim + ".link"),
    "target of a link": lambda: os.readlink(victim + ".link"),
    "rights": lambda: os.access(victim, os.F_OK) or os.stat(victim),
    "place": lambda: os.open(victim, os.O_PATH),
    "folder": lambda: os.stat(os.path.dirname(victim)),
    "from here": lambda: os.stat("../" * 20 + victim),
    "from the folder of the process": lambda: os.stat(os.path.basename(victim)),
    "users of the machine": lambda: os.stat("/etc/passwd"),
    "the gateway's process": lambda: os.stat(f"/proc/{gateway}"),
    "own process": lambda: os.readlink("/proc/self/exe"),
    "words": lambda: open(victim).read(),
    "list": lambda: os.listdir(os.path.dirname(victim)),
}
held = confinement.confine_process()
for name, look in LOOKS.items():
    try:
        look()
    except FileNotFoundError:
        continue  # as if nothing were there
    except PermissionError:
        print(name, "exists")
    else:
        print(name)
if not USER:  # another user may not read the interpreter that is running
    import lxml.html, pypdf
print(held)
"""
SEEN = [
    *("facts", "facts of a link", "target of a link", "rights", "place", "folder", "from here"),
    *("from the folder of the process", "users of the machine", "the gateway's process", "own process"),
    *("words exists", "list exists"),
]


def look_around(folder: Path, *, refused: str = "", user: int = 0) -> tuple[list[str], str]:
    """Return what a confined process can see of a file in *folder*, and what it says confines it."""
    (folder / "victim.txt").write_text("secret")
    (folder / "victim.txt.link").symlink_to("victim.txt")
    program = FACTS.replace("VICTIM", repr(str(folder / "victim.txt"))).replace("REFUSED", repr(refused))
    command = [sys.executable, "-I", "-B", "-c", program.replace("USER", str(user))]
    done = subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
    assert done.stderr == ""
    *seen, held = done.stdout.splitlines()
    return seen, held


@pytest.mark.skipif(not can_confine(), reason="needs seccomp on x86-64 or ARM64")
@pytest.mark.parametrize(
    ("user", "refused"),
    [(0, ""), (12_345, ""), (12_345, "capset")],
    ids=["as we are", "not root", "not root, with the calls of the systemd unit"],
)
def test_in_a_private_root_no_file_of_the_gateway_exists(tmp_path: Path, user: int, refused: str) -> None:
    """Names, sizes and times of files are hidden too: of the home, of the machine, of other processes.

    Root needs no user namespace, everyone else does. The unit refuses `@privileged` calls, which `capset` is among.
    """
    if PRIVATE_ROOT not in probe_confinement() or (user and os.geteuid()):
        pytest.skip("no private root can be had here, or nobody else can be played")
    assert look_around(tmp_path, refused=refused, user=user) == ([], probe_confinement())


@pytest.mark.skipif(not landlock_version(), reason="needs Landlock (Linux 5.13)")
@pytest.mark.parametrize("refused", ["root", "mount", "pivot_root"])
def test_without_a_private_root_facts_of_files_are_seen_and_no_more(tmp_path: Path, refused: str) -> None:
    """Whichever step is refused, the line says so, reading goes on, and no file is read and no folder listed."""
    if PRIVATE_ROOT not in probe_confinement():
        refused = "root"  # it is refused here, too
    seen, held = look_around(tmp_path, refused=refused)
    assert held.endswith(f"seccomp; {FACTS_ARE_SEEN}")
    # A step that comes late leaves the namespace, in which /proc is covered already.
    assert seen == [each for each in SEEN if refused != "pivot_root" or "process" not in each.removeprefix("from the")]


@pytest.mark.skipif(not can_confine(), reason="needs seccomp on x86-64 or ARM64")
def test_without_landlock_and_private_root_the_line_says_that_files_can_be_read(tmp_path: Path) -> None:
    """Seccomp refuses every other call, and tells no files apart."""
    seen, held = look_around(tmp_path, refused="root and Landlock")
    assert held == f"seccomp; {FILES_ARE_READ}"
    assert seen == [each.removesuffix(" exists") for each in SEEN]


@pytest.mark.skipif(not can_confine() or os.geteuid() != 0, reason="needs root to share mounts")
def test_a_private_root_changes_no_mount_of_the_machine() -> None:
    """Mounts are shared between namespaces by default where systemd runs: the child's are not."""
    done = subprocess.run([sys.executable, "-B", "-c", MOUNTS], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert (done.stdout, done.stderr) == ("same\n", "")


LINKED = """
import os, sys
from agent.attachments.process_confinement import confine_process
held = confine_process()
import lxml.html, wave
for folder in (sys.prefix, sys.base_prefix):
    try:
        print(open(folder + "/home/victim.txt").read())
    except OSError as error:
        print(type(error).__name__)
print(held)
"""


@pytest.mark.skipif(not can_confine(), reason="needs seccomp on x86-64 or ARM64")
def test_an_interpreter_behind_links_is_read_and_a_home_beside_it_is_not(tmp_path: Path) -> None:
    """A link chooses among releases, uv links its interpreters, and people make homes in a venv."""
    tier = probe_confinement()
    base, venv, link = tmp_path / "base", tmp_path / "releases" / "7", tmp_path / "current"
    for folder in (base, venv):
        (folder / "home").mkdir(parents=True)
        (folder / "home" / "victim.txt").write_text("secret")
    for name in ("bin", "lib"):
        (base / name).symlink_to(Path(sys.base_prefix, name))
    (tmp_path / "python").symlink_to(base)
    (venv / "bin").mkdir()
    (venv / "bin" / "python").symlink_to(tmp_path / "python" / "bin" / f"python3.{sys.version_info.minor}")
    (venv / "lib").symlink_to(Path(sys.prefix, "lib"))
    (venv / "pyvenv.cfg").write_text(f"home = {tmp_path}/python/bin\n")
    link.symlink_to(venv)
    command = [str(link / "bin" / "python"), "-I", "-B", "-c", LINKED]
    done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - ours
    refusal = "FileNotFoundError" if PRIVATE_ROOT in tier else "PermissionError"
    assert (done.stdout.splitlines(), done.stderr) == ([refusal, refusal, tier], "")


MOUNTS = """
import ctypes, os, subprocess, sys
from pathlib import Path
from agent.attachments import process_confinement as confinement
libc = ctypes.CDLL(None, use_errno=True)
confinement._check(libc.unshare(confinement._NEW_MOUNTS))
SHARED = 0x100000 | 0x4000
confinement._mount(libc, None, "/", SHARED)
before = Path("/proc/self/mountinfo").read_text()
assert " shared:" in before
assert confinement.PRIVATE_ROOT in confinement.probe_confinement()
print("same" if Path("/proc/self/mountinfo").read_text() == before else "changed")
"""
EVERY_CALL = """
import ctypes, errno, os, sys
from agent.attachments import process_confinement as confinement
confinement.landlock_version = lambda: 0
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.argtypes = [ctypes.c_long] * 7
machine = os.uname().machine
listed = {*confinement._ALLOWED[machine][1], *(call for call, *_ in confinement._BY_VALUE[machine])}
listed |= {call for call, _ in confinement._OPENING[machine]} | {confinement._CLONE[machine]}
listed |= {335, 336} if machine == "x86_64" else set()  # of probes: the kernel filters them nowhere, and ends who calls
listed |= set(confinement._STARTING[machine]) if PROGRAMS else set()
assert confinement.confine_process(PROGRAMS)
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
assert confine_process()
libc.syscall(0x40000000 | 39) if TABLE == "x32" else old()
print("alive")
"""


@pytest.mark.skipif(not can_confine(), reason="needs seccomp on x86-64 or ARM64")
@pytest.mark.parametrize("programs", [[], ["/usr/bin/true"]], ids=["reader", "calculator"])
def test_every_call_that_is_not_listed_is_refused(programs: list[str]) -> None:
    """The filter itself answers, whatever the kernel would: io_uring, memory of others, keys, mounts, descriptors.

    Of the listed ones, those about other processes are refused by their arguments.
    """
    program = EVERY_CALL.replace("PROGRAMS", repr(programs))
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert (done.stdout, done.stderr) == ("end\n", "")


@pytest.mark.skipif(not can_confine() or platform.machine() != "x86_64", reason="needs seccomp on x86-64")
@pytest.mark.parametrize("table", ["x32", "i386"])
def test_other_tables_of_calls_end_the_process(table: str) -> None:
    """The numbers of x32 and of 32-bit programs mean other calls."""
    program = OTHER_TABLES.replace("TABLE", repr(table))
    done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert "alive" not in done.stdout
    assert done.returncode in (-signal.SIGSYS, -signal.SIGSEGV), done.stderr
