"""Operations on the installation: the doctor's findings, backups, a check of the store, the use of models, tools."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from zoneinfo import ZoneInfo

from gateway.control import Line
from gateway.control.registry import AuditRule, operation, option, plain
from gateway.errors import UserError
from gateway.events import ChatKind, PlatformAccount, Role
from gateway.home import make_private
from gateway.i18n.formats import format_usage
from gateway.installation import load_entry_points, operator_command
from gateway.logs import recent_lines
from gateway.operations.group import OperationGroup
from gateway.ports.memory import ScopeFileChange
from gateway.settings.chat_settings import ChatOverrides
from gateway.settings.sources import HOME

if TYPE_CHECKING:
    from agent.tools.tool import Tool
    from agent.tools.toolbox import Toolbox
    from gateway.app.runtime import Runtime
    from gateway.backup import BackupResult

CHECK_WITHIN = 90.0  # seconds: the doctor's own checks end in 60
_VERIFY_WITHIN = 1800.0  # seconds
_SPARE = 1024 * 1024 * 1024  # bytes of the disk that the gateway keeps meanwhile
_PROGRESS_EVERY = 0.5  # seconds
_MOST_BACKUPS = 200  # that are listed
_LEVELS = ("debug", "info", "warning", "error", "critical")
_MOST_LOG_LINES = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.tar\.gz\Z")
# The same program, whether it runs from a checkout or from a wheel; what is imported does not come from the folder
# that the gateway was started in.
_DOCTOR = ("-P", "-m", "parlour", "doctor", "--json")


class MachineOperations(OperationGroup):
    """The operations `doctor`, `backups list|create|verify`, `store check` and `logs`."""

    def __init__(self, app: Runtime, *, check_within: float = CHECK_WITHIN) -> None:
        super().__init__(app)
        self._check_within = check_within
        self._checks = asyncio.Lock()
        self._backups = asyncio.Lock()
        self._writing: asyncio.Task[BackupResult] | None = None

    @operation("doctor", Role.OWNER)
    async def doctor(self, offline: bool = False) -> AsyncIterator[Line]:
        """Yield the findings of `parlour doctor`, the failures first; with *offline*, no platform or model is called.

        A separate process makes the checks, so that none can block the event loop; one that takes too long is killed.
        """
        if self._checks.locked():
            raise UserError("the checks are running already; wait for them to end")
        async with self._checks:
            output = await self._run_doctor(is_offline=offline)
        for line in output.splitlines():
            yield json.loads(line)

    async def _run_doctor(self, *, is_offline: bool) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_DOCTOR,
            *(["--offline"] if is_offline else []),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, HOME: str(self._app.home.path)},
        )
        try:
            async with asyncio.timeout(self._check_within):
                output, _ = await process.communicate()
        except TimeoutError:
            raise UserError(
                f"the checks took more than {self._check_within:.0f} s; run `parlour doctor` in a terminal"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode not in (0, 2) or not output.endswith(b"\n"):
            raise UserError("the checks could not be made; run `parlour doctor` in a terminal")
        return output

    @operation("backups list", Role.OWNER)
    async def list_backups(self) -> AsyncIterator[Line]:
        """Yield one line per archive in the home's folder of backups, the newest first."""
        for line in await asyncio.to_thread(_list_archives, self._app.home.backups):
            yield line

    @operation("backups create", Role.OWNER, audit=AuditRule.CALL)
    async def create_backup(self) -> AsyncIterator[Line]:
        """Write a backup into the home's folder of backups: lines of progress, then one of the archive.

        It is finished even if its caller leaves.
        """
        from gateway.backup import BackupProgress

        if self._writing is not None and not self._writing.done():
            raise UserError("a backup is being written; wait for it to end")
        home, progress = self._app.home, BackupProgress()
        await asyncio.to_thread(make_private, home.backups)
        name = f"parlour-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{secrets.token_hex(2)}.tar.gz"
        self._writing = task = asyncio.create_task(self._app.backup(home.backups / name, progress), name="backup")
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_PROGRESS_EVERY)
                yield {"done": progress.done, "of": progress.total}
            result = await task
        except asyncio.CancelledError:  # the gateway stops
            task.cancel()
            raise
        yield {"name": name, "files": result.files, "size": result.size, "left_out": list(result.left_out)}

    @operation("backups verify", Role.OWNER, audit=AuditRule.CALL, subject="name")
    async def verify_backup(self, name: str) -> AsyncIterator[Line]:
        """Unpack a backup beside the home, compare every file with the archive's own list, and delete it again."""
        from gateway.restore import RestoreLimits, verify_backup  # a gateway that verifies none does without tarfile

        folder = self._app.home.backups
        if not _NAME.match(name) or name not in await asyncio.to_thread(_names, folder):
            raise UserError(f"there is no backup {name[:130]!r} in {folder}")
        if self._backups.locked():
            raise UserError("a backup is being checked; wait for it to end")
        async with self._backups:
            limits = RestoreLimits(seconds=_VERIFY_WITHIN, spare=_SPARE)
            files = await asyncio.to_thread(verify_backup, folder / name, folder, limits=limits)
        yield {"name": name, "files": files}

    @operation("store check")
    async def check_store(self, remove: object = ()) -> AsyncIterator[Line]:
        """Read the whole store; yield a line for each fault, then one with the numbers of rows.

        A file whose bytes are not what was stored has a line with its scope, kind and name. With `remove`, a list of
        these, the files that it names are removed if they are still damaged.
        """
        from agent.base.scopes import label
        from gateway.store.closed_store import read_store
        from gateway.store.upkeep import check_tables, damaged_files

        store, home = self._app.store, self._app.home
        if damage := await store.find_damage():
            raise UserError(damage)
        url = self._app.settings.store.address
        checked = await asyncio.to_thread(read_store, home.journal, url, check_tables)
        if checked is None:
            raise UserError("the store could not be read beside this gateway; try again")
        for fault in checked.faults:
            yield {"fault": fault.what, "count": fault.count}
        named = [tuple(each) for each in remove] if isinstance(remove, list) else []
        async for scope, file, reason in damaged_files(store.files):
            is_removed = (scope, file.kind, file.name) in named
            if is_removed and not await store.files.change(scope, ScopeFileChange(was=file)):
                continue  # it was replaced or removed since it was read
            yield {
                "name": label(scope),
                "scope": scope,
                "kind": file.kind,
                "file": file.name,
                "size": file.size,
                "place": file.place,
                "reason": reason,
                "state": "removed" if is_removed else "damaged",
            }
        yield {"counts": checked.counts}

    @operation("logs", Role.OWNER)
    async def list_logs(
        self, after: int = 0, level: str = "", component: str = "", about: str = ""
    ) -> AsyncIterator[Line]:
        """Yield the newest lines of the log after the number *after*, the oldest first; filters narrow them.

        *level* is the least level, *component* the beginning of a logger's name, *about* that of a turn's id or
        reference.
        """
        if level not in ("", *_LEVELS):
            raise UserError(f"`level` is one of {', '.join(_LEVELS)}")
        levels = _LEVELS[_LEVELS.index(level) if level else 0 :]
        found = [
            {"number": number, **event}
            for number, event in recent_lines.read(after)
            if event.get("level") in levels
            and str(event.get("logger", "")).startswith(component)
            and any(str(event.get(name, "")).startswith(about) for name in ("turn", "reference"))
        ]
        for line in found[-_MOST_LOG_LINES:]:
            yield line


def _list_archives(folder: Path) -> list[Line]:
    lines: list[Line] = []
    for name in sorted(_names(folder), key=lambda each: (folder / each).stat().st_mtime, reverse=True)[:_MOST_BACKUPS]:
        found = (folder / name).stat()
        at = plain(datetime.fromtimestamp(found.st_mtime, UTC))
        lines.append(
            {"name": name, "size": found.st_size, "at": at, "restore": operator_command(f"restore {folder / name}")}
        )
    return lines


def _names(folder: Path) -> list[str]:
    """Return the names of the archives in *folder*, links excluded."""
    if not folder.is_dir():
        return []
    found = (each for each in os.scandir(folder) if _NAME.match(each.name))
    return [each.name for each in found if each.is_file(follow_symlinks=False)]


_OURS = frozenset({"agent", "gateway"})
_MEMORY = "of it memory"  # the sum of the purposes that write memory
_NOBODY = "(nobody)"  # embeddings, and persons who were erased
_GROUPS = ("person", "chat", "purpose", "model", "day")
_DAYS = re.compile(r"(\d{1,5})d\Z")
_SUMMED = ("calls", "tokens_in", "tokens_out", "tokens_cached", "known_cost", "unpriced_calls")


def usage_table(by: str, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of *lines*, which are sums by *by*: a header, a row each, of it what memory used, the total."""
    from agent.memory.jobs.token_budget import MEMORY_PURPOSES  # which other commands do without

    names = [str(line[by]) or _NOBODY for line in lines]
    width = max(len(name) for name in (*names, by, "together", _MEMORY))
    rows = [f"{by:{width}}  {'calls':>8}  {'tokens':>12}  {'cached':>6}  cost"]
    rows += [_usage_row(name, width, [line]) for name, line in zip(names, lines, strict=True)]
    memory = [line for line in lines if by == "purpose" and line[by] in MEMORY_PURPOSES]
    if memory:
        rows.append(_usage_row(_MEMORY, width, memory))
    return [*rows, _usage_row("together", width, lines)]


def _usage_row(name: str, width: int, lines: Sequence[Mapping[str, Any]]) -> str:
    sums = format_usage(lines)
    return f"{name:{width}}  {sums['calls']:>8,}  {sums['tokens']:>12,}  {sums['cached_percent']:>5}%  {sums['cost']}"


def _usage_rows(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    return usage_table(arguments["by"], lines) if lines else [f"no model was called since {arguments['since']}"]


def _tool_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    width = max((len(line["tool"]) for line in lines if "tool" in line), default=0)
    return [_tool_row(line, width) for line in lines]


def _tool_row(line: Line, width: int) -> str:
    if "questions" in line:
        count = line["questions"]
        return f"{count} {'question waits' if count == 1 else 'questions wait'} for approval in {line['chat']}"
    name = f"{line['state']:3}  {line['tool']:{width}}"
    if line["state"] == "off":
        return f"{name}  {line['reason']}"
    off_in = f"off in {', '.join(line['off_in'])}" if line["off_in"] else ""
    return "  ".join(filter(None, (name, f"{line['kind']:7}", line["package"], line["rights"], off_in)))


class UsageOperations(OperationGroup):
    """The operations `tools` and `usage`."""

    @operation("tools", show=_tool_rows)
    async def tools(self) -> AsyncIterator[Line]:
        """List the tools that are on and off, with the reasons, and the calls that wait for approval."""
        from agent.tools.tool_questions import TOOL_QUESTION
        from agent.tools.toolbox import GROUP
        from gateway.app.chat_settings import list_disabled_tools

        settings, toolbox = self._app.settings, self._app.commands.profiles.toolbox
        left_out = _left_out(ChatOverrides(settings.chats, profiles=settings.profiles), toolbox)
        packages = {entry.name: entry.dist.name for entry in load_entry_points(GROUP) if entry.dist is not None}
        for tool in toolbox.tools:
            yield {
                "tool": tool.name,
                "state": "on",
                "kind": tool.kind.value,
                "package": packages.get(tool.name) or _package(tool),
                "rights": ", ".join(_restrictions(tool)),
                "off_in": left_out.get(tool.name, []),
            }
        for name, reason in sorted(list_disabled_tools(settings).items()):
            if name not in toolbox.names:
                yield {"tool": name, "state": "off", "reason": reason}
        waiting = Counter(str(job.payload["key"]) for job in await self._app.store.jobs.pending_of(TOOL_QUESTION))
        for key, count in sorted(waiting.items()):
            yield {"chat": key, "questions": count}

    @operation("usage", Role.OWNER, show=_usage_rows)
    async def usage(
        self,
        by: Annotated[str, option("person, chat, purpose, model or day.")] = "day",
        since: Annotated[str, option("A day, such as 2026-11-01, or 7d for the last seven.")] = "30d",
    ) -> AsyncIterator[Line]:
        """Show model calls, tokens and cost.

        Days are those of PARLOUR_TIMEZONE. Linked accounts are one person; usage without a person (embeddings, erased
        persons) has the name "". `cost` is null where the price of any call is unknown.
        """
        if by not in _GROUPS:
            raise UserError(f"usage cannot be grouped by {by!r}; use one of: {', '.join(_GROUPS)}")
        zone, now = self._app.settings.timezone, self._app.now()
        found = await self._app.store.usage.by(by, since=_since(since, now, ZoneInfo(zone)), until=now, zone=zone)
        for line in self._by_person(found) if by == "person" else found:
            yield dict(line)

    def _by_person(self, rows: tuple[Mapping[str, Any], ...]) -> list[Mapping[str, Any]]:
        persons: dict[str, dict[str, Any]] = {}
        for line in rows:
            # No account has the file name "%": usage without a person must not pass for one's.
            name = self._label_of(line["person"]) if line["person"] else ""
            sums = persons.get(name)
            persons[name] = {**line, "person": name} if sums is None else _add(sums, line)
        return sorted(persons.values(), key=lambda line: (-line["tokens_in"] - line["tokens_out"], line["person"]))

    def _label_of(self, account: str) -> str:
        person = self._app.store.links.person(PlatformAccount.from_name(account))
        return PlatformAccount.from_name(person).label


def _add(first: dict[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    sums = {name: first[name] + second[name] for name in _SUMMED}
    return {**first, **sums, "cost": None if sums["unpriced_calls"] else sums["known_cost"]}


def _since(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the midnight of *zone* that *text* means: a day (2026-11-01), or a number of days ago (7d)."""
    today = now.astimezone(zone).date()
    days = _DAYS.match(text)
    try:
        day = today - timedelta(days=int(days[1])) if days else date.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UserError(
            f"{text!r} is not a date; write one such as 2026-11-01, or 7d for the last seven days"
        ) from None
    return datetime(day.year, day.month, day.day, tzinfo=zone)


def _left_out(overrides: ChatOverrides, toolbox: Toolbox) -> Mapping[str, list[str]]:
    """Return the chat selectors whose settings turn a tool off, by tool."""
    found: dict[str, list[str]] = {}
    for selector, rules in overrides.by_selector():
        console_arguments = toolbox.only(rules.allow, rules.deny).names
        for name in toolbox.names:
            if name not in console_arguments:
                found.setdefault(name, []).append(selector)
    return found


def _package(tool: Tool) -> str:
    """Return the distribution of a tool without an entry point: ours, or the top-level package of a plugin."""
    module = tool.run.__module__.partition(".")[0]
    return "parlour" if module in _OURS else module


def _restrictions(tool: Tool) -> Iterator[str]:
    """Yield roles, chats and approvals that restrict a tool, in words; nothing for one that every member may call."""
    from agent.tools.rights import effective_rule
    from agent.tools.tool import AskRule

    asks = {
        AskRule.TAINTED: "asks after text from other sources",
        AskRule.FIRST: "asks first",
        AskRule.ALWAYS: "always asks",
    }
    rule = effective_rule(tool)
    if rule.who is not Role.MEMBER:
        yield f"{rule.who}s only"
    if rule.where == {ChatKind.DIRECT}:
        yield "direct chats only"
    elif rule.where == {ChatKind.GROUP}:
        yield "shared chats only"
    elif not rule.where:
        yield "in no chat"
    if words := "asks about some calls" if tool.review is not None else asks.get(tool.ask):
        yield words
