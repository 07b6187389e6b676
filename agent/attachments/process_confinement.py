"""Confinement of child processes by the kernel: Landlock for files, seccomp for everything else.

The audit hook of `reader_process.py` stops Python code. A decoder written in C that a hostile file took over calls the
kernel itself; then these rules hold. Standard library only. Nothing of it can be undone in this process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterable, Sequence

_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2  # of prctl
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # landlock's system calls, the same on every architecture
_VERSION, _BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ = 0b1, 0b100, 0b1100  # the last one: also list folders
# Rights of files that each version of Landlock knows, and from which version on it knows TCP and scopes.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_TCP_FROM, _SCOPES_FROM = 4, 6
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")

# Calls that reading a file never makes: sockets, programs, signals, other processes, namespaces, keys, kernel modules.
_DENIED: dict[str, tuple[int, Sequence[int]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 42, 43, 44, 46, 49, 50, 288),  # sockets
            *(62, 129, 200, 297, 424, 434, 438),  # signals and pidfds
            *(101, 310, 311),  # ptrace, memory of other processes
            *(109, 112),  # setpgid, setsid: one kill must end all
            *(135, 155, 161, 165, 166, 272, 308),  # personality, roots, mounts, namespaces
            *(175, 176, 246, 298, 313, 320, 321, 323),  # modules, kexec, perf, bpf, userfaultfd
            *(248, 249, 250),  # keys
            *(29, 30, 31, 64, 68),  # shared memory, semaphores, message queues
            *(303, 304, 425, 426, 427, 428, 429, 430, 442),  # file handles, io_uring, new mounts
            *(90, 91, 92, 93, 94, 132, 235, 260, 261, 268, 280, 452),  # modes, owners and times, which Landlock leaves
            *(188, 189, 190, 197, 198, 199),  # extended attributes
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 200, 201, 202, 203, 206, 211, 242),
            *(129, 130, 138, 240, 424, 434, 438),
            *(117, 270, 271),
            *(154, 157),
            *(39, 40, 41, 51, 92, 97, 268),
            *(104, 105, 106, 241, 273, 280, 282, 294),
            *(217, 218, 219),
            *(186, 190, 194, 195, 196),
            *(264, 265, 425, 426, 427, 428, 429, 430, 442),
            *(52, 53, 54, 55, 88, 452),
            *(5, 6, 7, 14, 15, 16),
        ),
    ),
}
# Needed to start a program: socketpair, fork, vfork, execve, execveat.
_STARTING: dict[str, Sequence[int]] = {"x86_64": (53, 57, 58, 59, 322), "aarch64": (199, 221, 281)}
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")  # of programs
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3, _CLONE_THREAD = 435, 0x10000
_NAMESPACES = 0x7E020080  # flags of clone
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 0x00050000 | 1, 0x00050000 | 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_X32 = 0x40000000  # a second table of calls on x86-64


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers; 0 if none exists."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def can_confine() -> bool:
    """Return True if both mechanisms exist here."""
    return landlock_version() > 0 and platform.machine() in _DENIED


def confine_process(readable: Iterable[str], programs: Sequence[str] = ()) -> bool:
    """Allow this process to read *readable* and the system's libraries, and nothing else; return False if it cannot.

    It may start processes of *programs* alone, which are confined in the same way; without any it starts none. Threads
    that run already are not confined. Raises OSError if the kernel offers the mechanisms and refuses the rules:
    nothing may be read then.
    """
    if not can_confine():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _restrict_files(libc, [*readable, *_LIBRARIES], [*programs, *_LOADERS] if programs else ())
    _restrict_calls(libc, may_start=bool(programs))
    return True


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
    architecture, denied = _DENIED[machine]
    denied = denied if may_start else (*denied, *_STARTING[machine])
    program = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for call in denied:
        program += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _EPERM)]
    # Threads are clones too. glibc falls back from clone3, whose flags no filter can see.
    program += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS)]
    program += [(_EQUAL, 0, 3, _CLONE[machine]), (_LOAD, 0, 0, 16)]
    program += [(_ANY_BIT, 0, 1, _NAMESPACES) if may_start else (_ANY_BIT, 1, 0, _CLONE_THREAD)]
    program += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("HBBI", *each) for each in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    _check(libc.prctl(_SECCOMP, _FILTER, filter_program, 0, 0))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
