"""Confinement of child processes by the kernel: Landlock for files, seccomp for everything else, and a private root.

The audit hook of `reader_process.py` stops Python code. A decoder written in C that a hostile file took over calls the
kernel itself; then these rules hold. Standard library only. Nothing of it can be undone in this process. Run by path
with ``python -I``, it confines itself and prints what holds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2  # of prctl
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # landlock's system calls, the same on every architecture
_VERSION, _BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ = 0b1, 0b100, 0b1100  # the last one: also list folders
# Rights of files that each version of Landlock knows, and from which version on it knows TCP and scopes.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_TCP_FROM, _SCOPES_FROM = 4, 6
_NEW_MOUNTS, _NEW_USERS = 0x20000, 0x10000000  # of unshare
_BIND, _PRIVATE, _INERT = 0x5000, 0x44000, 0xE  # of mount: the first two with all below; no devices, no programs
_DETACH = 2  # of umount2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPABILITIES = struct.pack("Ii", 0x20080522, 0)  # of capget and capset: version 3, and this process
_FILES_OF_OTHERS = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")

# All that a process calls which reads files, computes and has threads. Anything else is refused: calls that a newer
# kernel adds, that reach other processes (signals, priorities, limits, watches), or that change files by their path.
# Facts of files (stat) stay readable by their path: imports need them, and seccomp sees no path. In the private root
# no other path exists.
_ALLOWED: dict[str, tuple[int, Sequence[int]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(0, 1, 3, 5, 8, 17, 19, 20, 32, 33, 221, 292, 295, 436),  # read, write, close, dup
            *(4, 6, 21, 78, 79, 80, 89, 137, 138, 217, 262, 267, 269, 332, 439),  # names and facts of files
            *(9, 10, 11, 12, 25, 27, 28, 324),  # memory
            *(13, 14, 15, 34, 36, 37, 38, 127, 128, 130, 131),  # its own signals and timers
            *(7, 22, 23, 213, 232, 233, 270, 271, 281, 290, 291, 293, 35, 96, 201),  # waiting, the time
            *(24, 39, 60, 63, 98, 99, 100, 102, 104, 107, 108, 110, 111, 186, 231),  # itself
            *(158, 202, 218, 219, 273, 318, 334),  # threads
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(62, 63, 64, 65, 66, 67, 69, 57, 80, 23, 24, 223, 436),
            *(17, 43, 44, 48, 49, 61, 78, 79, 291, 439),
            *(214, 215, 216, 222, 226, 232, 233, 283),
            *(102, 103, 132, 133, 134, 135, 136, 137, 139),
            *(19, 20, 21, 22, 59, 72, 73, 101, 169),
            *(93, 94, 124, 153, 160, 165, 172, 173, 174, 175, 176, 177, 178, 179),
            *(96, 98, 99, 128, 278, 293),
        ),
    ),
}
# Calls that are allowed for some values of one argument: its index and the values. The first two are about the process
# itself (0), the third about its name and its parent's end: PR_SCHED_CORE would bind another process to ours. The
# fourth is about descriptors: F_SETOWN would send signals to others, and locks would hold up who writes to a file that
# can be read. Of the clocks, negative ones are the CPU time of any process.
_BY_VALUE: dict[str, Sequence[tuple[int, int, Sequence[int]]]] = {
    "x86_64": (
        (302, 0, (0,)),  # prlimit64
        (204, 0, (0,)),  # sched_getaffinity
        (157, 0, (1, 15, 16)),  # prctl: PR_SET_PDEATHSIG, PR_SET_NAME, PR_GET_NAME
        (72, 1, (0, 1, 2, 3, 4, 1030)),  # fcntl
        (16, 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # ioctl: terminals and flags
        *((call, 0, range(12)) for call in (228, 229, 230)),  # clock_gettime, clock_getres, clock_nanosleep
    ),
    "aarch64": (
        (261, 0, (0,)),
        (123, 0, (0,)),
        (167, 0, (1, 15, 16)),
        (25, 1, (0, 1, 2, 3, 4, 1030)),
        (29, 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
        *((call, 0, range(12)) for call in (113, 114, 115)),
    ),
}
# Calls that open files, and the index of their flags: files are opened for reading alone.
_OPENING: dict[str, Sequence[tuple[int, int]]] = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
_WRITES = 0o3 | 0o100 | 0o1000  # O_ACCMODE, O_CREAT, O_TRUNC
# Needed to start a program: socketpair, fork, vfork, execve, execveat, and to wait for it.
_STARTING: dict[str, Sequence[int]] = {"x86_64": (53, 57, 58, 59, 61, 247, 322), "aarch64": (199, 221, 281, 260, 95)}
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")  # of programs
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3, _CLONE_THREAD = 435, 0x10000
_NAMESPACES = 0x7E020080  # flags of clone
_ANOTHERS_CHILD = 0x8000 | 0x2000  # CLONE_PARENT: a child of the gateway, which nobody waits for; CLONE_PTRACE
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 0x00050000 | 1, 0x00050000 | 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_X32 = 0x40000000  # a second table of calls on x86-64

PRIVATE_ROOT = "private root"
FACTS_ARE_SEEN = "names, sizes and times of files can be seen"
FILES_ARE_READ = "files can be read"
_ROOT = "/proc"  # where the private root is built: it exists everywhere, and nothing that is shown lies below it
_PROBE_SECONDS = 10


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers; 0 if none exists."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def can_confine() -> bool:
    """Return True if seccomp confines here; Landlock and a private root may be missing."""
    if sys.platform != "linux" or platform.machine() not in _ALLOWED:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    # A kernel that has it looks for the rules, and finds none at this address.
    return bool(libc.prctl(_SECCOMP, _FILTER, None, 0, 0) < 0 and ctypes.get_errno() == errno.EFAULT)


def probe_confinement() -> str:
    """Return what holds in the children here, as `confine_process` does, or "none". Runs a child, and blocks.

    Nothing else can tell: the kernel, its settings, a container and the service manager may each refuse a private root,
    and a process that tries is confined for good. Raises OSError if no child can be run.
    """
    import subprocess  # the children import this module, and start nothing

    if not can_confine():
        return "none"
    command = [sys.executable, "-I", "-B", __file__]
    try:
        done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)  # noqa: S603 - ours
    except subprocess.SubprocessError as error:
        raise OSError(f"the confinement cannot be tried: {error}") from error
    return done.stdout.strip()


def interpreter_folders() -> list[str]:
    """Return the folders from which this interpreter imports, spelled as in `sys.path`, so links may be part of them.

    Not the prefixes themselves: a home may lie beside `lib`, and all programs of the system below `/usr`.
    """
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    return sorted(f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64"))


def confine_process(programs: Sequence[str] = ()) -> str:
    """Allow this process to read the interpreter and the system's libraries, and nothing else; return what holds then.

    That is "" if the kernel cannot confine it, and names what is still possible otherwise: seccomp does not tell files
    apart, which Landlock and a private root do. Without *programs* it starts no process; with Landlock it starts these
    programs alone, and else any that it can read. They are confined in the same way. Call it before the first thread:
    threads that run are not confined, and with them a private root is refused. Raises OSError if the kernel offers the
    mechanisms and refuses the rules: nothing may be read then.
    """
    if not can_confine():
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    files = [*interpreter_folders(), *_LIBRARIES]
    executable = [*programs, *_LOADERS] if programs else []
    is_private = _enter_private_root(libc, [*files, *executable])
    _check(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    if os.geteuid() == 0:
        _drop_capabilities(libc)
    version = landlock_version()
    if version:
        _restrict_files(libc, files, executable)
    _restrict_calls(libc, may_start=bool(programs))
    held = ", ".join(
        [*([f"Landlock {version}"] if version else ()), "seccomp", *([PRIVATE_ROOT] if is_private else ())]
    )
    return held if is_private else f"{held}; {FACTS_ARE_SEEN if version else FILES_ARE_READ}"


def _enter_private_root(libc: ctypes.CDLL, visible: Sequence[str]) -> bool:
    """Give this process a root in which only *visible* exists; return False if it keeps the one that it has.

    Every step can be refused: many containers grant no namespace, and AppArmor grants one in which nothing can be
    mounted. What was done until then takes nothing away that a reader needs, and the other rules follow in any case.
    """
    paths = {Path(path) for path in visible}
    paths |= {path.resolve() for path in paths}
    uid, gid = os.geteuid(), os.getegid()
    try:
        # Only root may mount without a user namespace. It gets none, because it could not read others' files there.
        _check(libc.unshare(_NEW_MOUNTS | (_NEW_USERS if uid else 0)))
        if uid:
            Path("/proc/self/setgroups").write_text("deny", "utf-8")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", "utf-8")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", "utf-8")
        _mount(libc, None, "/", _PRIVATE)  # before the others, which would be seen by the whole machine
        _mount(libc, "tmpfs", _ROOT, _INERT)
        shown: set[Path] = set()
        for path in sorted(paths):
            if shown.isdisjoint(path.parents) and os.access(path, os.F_OK):
                _show(libc, path)
                shown.add(path)
        os.chdir(_ROOT)
        _check(libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."))
        _check(libc.umount2(b".", _DETACH))  # the old root, which lies on the new one
        os.chdir("/")
    except OSError:
        return False
    return True


def _show(libc: ctypes.CDLL, path: Path) -> None:
    """Make *path* exist in the root that is built: as a link if it leads elsewhere, and else as what it is here."""
    inside = Path(_ROOT, *path.parts[1:])
    inside.parent.mkdir(parents=True, exist_ok=True)
    if path.resolve() != path:
        inside.symlink_to(path.resolve())
        return
    if path.is_dir():
        inside.mkdir()
    else:
        inside.touch()
    _mount(libc, str(path), str(inside), _BIND)


def _mount(libc: ctypes.CDLL, source: str | None, target: str, flags: int) -> None:
    name = None if source is None else os.fsencode(source)
    _check(libc.mount(name, os.fsencode(target), name, ctypes.c_ulong(flags), None))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Leave root only what it needs to read and start files of others: it could raise its own limits again.

    Other users have rights in their own namespace at most, and the systemd unit refuses them this call.
    """
    rights = ctypes.create_string_buffer(24)
    _check(libc.capget(_CAPABILITIES, rights))
    _, permitted, _, _, permitted_above, _ = struct.unpack("6I", rights)
    kept = permitted & _FILES_OF_OTHERS
    if (kept, 0) != (permitted, permitted_above):
        _check(libc.capset(_CAPABILITIES, struct.pack("6I", kept, kept, 0, 0, 0, 0)))


def _restrict_files(libc: ctypes.CDLL, readable: Sequence[str], programs: Sequence[str]) -> None:
    version = landlock_version()
    files = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    attributes = struct.pack("QQQ", files, 0b11 if version >= _TCP_FROM else 0, 0b11 if version >= _SCOPES_FROM else 0)
    size = 24 if version >= _SCOPES_FROM else 16 if version >= _TCP_FROM else 8
    rules = _check(libc.syscall(_CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0)))
    try:
        for path in (*readable, *programs):
            try:
                target = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not every system has all of them
            try:
                rights = _READ if stat.S_ISDIR(os.fstat(target).st_mode) else _READ_FILE
                rights |= _EXECUTE if path in programs else 0
                rule = struct.pack("=Qi", rights, target)
                _check(libc.syscall(_ADD_RULE, rules, ctypes.c_int(_BENEATH), rule, ctypes.c_uint32(0)))
            finally:
                os.close(target)
        _check(libc.syscall(_RESTRICT, rules, ctypes.c_uint32(0)))
    finally:
        os.close(rules)


def _restrict_calls(libc: ctypes.CDLL, *, may_start: bool) -> None:
    machine = platform.machine()
    architecture, allowed = _ALLOWED[machine]
    program = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for call in (*allowed, *(_STARTING[machine] if may_start else ())):
        program += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    for call, index, values in _BY_VALUE[machine]:
        program += [(_EQUAL, 0, 2 + 2 * len(values), call), (_LOAD, 0, 0, 16 + 8 * index)]
        for value in values:
            program += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
        program += [(_RETURN, 0, 0, _EPERM)]
    for call, index in _OPENING[machine]:
        program += [(_EQUAL, 0, 4, call), (_LOAD, 0, 0, 16 + 8 * index)]
        program += [(_ANY_BIT, 0, 1, _WRITES), (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    # Threads are clones too. glibc falls back from clone3, whose flags no filter can see.
    program += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS)]
    program += [(_EQUAL, 0, 4, _CLONE[machine]), (_LOAD, 0, 0, 16)]
    program += [
        (_ANY_BIT, 2, 0, _NAMESPACES | _ANOTHERS_CHILD),
        (_ANY_BIT, 0, 1, 0xFFFFFFFF if may_start else _CLONE_THREAD),
    ]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    _check(libc.prctl(_SECCOMP, _FILTER, filter_program, 0, 0))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


if __name__ == "__main__":
    print(confine_process())
