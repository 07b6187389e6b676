"""Operations on turns (search, the story of one with its stages, running it again), tasks and scheduled requests."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from gateway.alerts.alert_sources import LATE_AFTER
from gateway.control import Line
from gateway.control.registry import AuditRule, argument, operation, plain
from gateway.errors import UserError
from gateway.events import PlatformAccount, Role, SessionKey, short_turn_id
from gateway.i18n import FALLBACK, translate
from gateway.i18n.failures import BY_NAME
from gateway.i18n.formats import format_cost
from gateway.operations.group import OperationGroup, format_time, no_such_turn, parse_chat
from gateway.store.inspection import TurnQuery, TurnTrace

if TYPE_CHECKING:
    from agent.reminders.reminder import Reminder
    from agent.tasks.task import Task
    from gateway.ports.journal import Job

_MOST = 200  # turns, or entries, at once
_SEARCHED = 500  # newest turns of a session in which the text of one is looked for
_LONGEST_TEXT = 20_000  # characters of one message, argument or result


def promise_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    """Yield a row for each promise, or one that says that nothing is due."""
    if not lines:
        yield "nothing is due"
    for each in lines:
        late = "  late" if each["is_late"] else ""
        kind, state = each["kind"], each["state"]
        what = f"{translate(f'promises.kind_{kind}', FALLBACK)}, {translate(f'promises.state_{state}', FALLBACK)}"
        yield f"{format_time(each['at'])}  {what}  {each['reference'] or '-':8} {each['key']}{late}"


def activity_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    """Yield a row for each hour with messages, then one for each turn that failed."""
    (line,) = lines
    busy = [each for each in line["hours"] if each["messages"] or each["known_cost"] or each["unpriced_calls"]]
    if not busy:
        yield "no message arrived in the last 24 hours"
    for each in busy:
        cost = format_cost(each["known_cost"], each["unpriced_calls"])
        wait = f"{each['mean_wait']:.1f} s on average, {each['longest_wait']:.1f} s at most"
        counts = f"{each['messages']:>6,} messages  {each['answers']:>6,} answered"
        yield f"{format_time(each['at'])[:16]}Z  {counts}  {wait}  {cost}"
    for each in line["failed"]:
        where = each["title"] or each["key"]
        yield f"failed: {format_time(each['at'])}  {each['reference']}  {where}: {each['reason']}"


def turn_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    """Yield the story of a turn in words: its end, its messages, stages, model calls, steps and deliveries."""
    (line,) = lines
    record = line["record"]
    yield f"turn {line['turn']} in {line['key']}"
    if record is None:
        yield "  has not ended yet"
    else:
        yield f"  {record['outcome']} at {format_time(record['at'])}"
        if line["reason"]:
            yield f"  failed ({record['failure']}): {line['reason']}"
    for row in line["inbox"]:
        ended = f", ended {format_time(row['ended_at'])}" if row["ended_at"] else ""
        crashes = f", {row['crashes']} crashes" if row["crashes"] else ""
        yield f"message {row['seq']}: {row['state']}, accepted {format_time(row['accepted_at'])}{ended}{crashes}"
    for each in line["stages"]:
        lasted = "not ended" if each["seconds"] is None else f"{each['seconds']:.3f} s"
        yield f"stage {', '.join(each['stages'])}: {lasted}"
    for each in line["usage"]:
        cost = "cost unknown" if each["cost"] is None else f"${each['cost']:.4f}"
        tokens = f"{each['tokens_in']:,} tokens in ({each['tokens_cached']:,} cached), {each['tokens_out']:,} out"
        yield f"call of {each['model']} for {each['purpose']}: {tokens}, {cost}"
    for each in line["steps"]:
        yield f"step {each['n']}: {each['kind']}{' ' + each['call'] if each['call'] else ''}"
    for part in line["parts"]:
        attempts = "1 attempt" if part["attempts"] == 1 else f"{part['attempts']} attempts"
        receipt = f", receipt {part['message_id']}" if part["message_id"] else ""
        reason = f", {part['reason']}" if part["reason"] else ""
        number = part["id"].removeprefix(f"{line['turn']}.")
        yield f"part {number}: {part['state']} at {format_time(part['at'])}, {attempts}{receipt}{reason}"
    for each in line["dead"]:
        yield f"given up: {each['id']} at {format_time(each['at'])}: {each['reason']}"


class TurnOperations(OperationGroup):
    """The operations `turn`, `promises`, `activity` and `turns find|show|prompt`.

    With a `chat`, the last three find nothing outside of it.
    """

    @operation("turn", show=turn_rows)
    async def turn(
        self, reference: Annotated[str, argument("The short reference in the notice to the user.")]
    ) -> AsyncIterator[Line]:
        """Show everything recorded about one turn, without a word that was said in it."""
        trace = await self.find_trace(reference)
        yield {
            **plain(trace),
            "stages": self._stages(trace),
            "reason": _failure_words(str((trace.record or {}).get("failure", ""))),
        }

    @operation("activity", Role.OWNER, show=activity_rows)
    async def activity(self) -> AsyncIterator[Line]:
        """Show the messages, waits and cost of the last 24 hours, and the turns of the last hour that failed.

        Yields one line: `hours`, the oldest first, and `failed`, the newest first. Each failed turn has `reason`, the
        sentence that its sender was shown, and `title`, a display name of the chat, or "".
        """
        journal, now = self._app.store.journal, self._app.now()
        failed = await journal.failed_turns(now - timedelta(hours=1), limit=_MOST)
        names = {(each.channel, each.who.removeprefix("chat:")): each.name for each in self._app.roster.list_access()}
        yield {
            "hours": [plain(each) for each in await journal.summarise_hours(now - timedelta(hours=23), now)],
            "failed": [
                {
                    **plain(each),
                    "reference": short_turn_id(each.turn),
                    "reason": _failure_words(each.failure),
                    "title": names.get((each.key.channel, each.key.parent.chat), ""),
                }
                for each in failed
            ],
        }

    def _stages(self, trace: TurnTrace) -> list[Line]:
        return [plain(each) for each in stage_spans(trace, self._app.pool.turns.stage_times(trace.turn))]

    @operation("promises", Role.OWNER, show=promise_rows)
    async def promises(self) -> AsyncIterator[Line]:
        """List the promises of all chats, the oldest first: answers, allowed calls, fired reminders and ended tasks."""
        late = self._app.now() - LATE_AFTER
        for each in await self._app.store.journal.all_due_promises(_MOST):
            reference = short_turn_id(each.turn) if each.turn else ""
            yield {**plain(each), "reference": reference, "is_late": each.at < late}

    @operation("turns find", Role.ADMIN, {"person", "since", "until", "limit"})
    async def find(
        self, chat: str = "", person: str = "", since: str = "", until: str = "", limit: int = 50
    ) -> AsyncIterator[Line]:
        """Yield one line per turn, the newest first: of a *chat*, a *person*, a span of time, or of all."""
        key = parse_chat(chat) if chat else None
        query = TurnQuery(
            chat=key,
            scope=await self._shared_scope(key),
            accounts=self._accounts(person),
            since=_parse_time(since),
            until=_parse_time(until),
            limit=max(1, min(limit, _MOST)),
        )
        for each in await self._app.store.journal.find_turns(query):
            yield {"reference": short_turn_id(each.turn), **plain(each)}

    @operation("turns show", Role.ADMIN, {"reference"}, audit=AuditRule.CALL, subject="reference")
    async def show(self, reference: str = "", chat: str = "") -> AsyncIterator[Line]:
        """Yield one line with everything that is stored about a turn.

        `said` has the messages and tool calls as the transcript has them. The page's console gets null for direct chats
        of other people, and every caller for turns that are not among the newest of their session.
        """
        trace, scope = await self._trace(reference, chat)
        lines = await self._lines(trace)
        is_readable = self.may_read(scope)
        yield {
            **plain(trace),
            "reference": short_turn_id(trace.turn),
            "stages": self._stages(trace),
            "tools": _tool_outcomes(lines),
            "is_readable": is_readable,
            "said": [_format_line(line) for line in lines if line.get("role")] if is_readable and lines else None,
        }

    @operation("turns prompt", Role.ADMIN, {"reference"}, audit=AuditRule.CALL, subject="reference")
    async def prompt(self, reference: str = "", chat: str = "") -> AsyncIterator[Line]:
        """Yield a line per message of the turn's first prompt, as the code of today writes it.

        Raises UserError for a turn whose text the caller may not read, one without a prompt, and one that is not
        stored completely any more.
        """
        trace, scope = await self._trace(reference, chat)
        if not self.may_read(scope):
            raise UserError("this is somebody's direct chat: only they read it")
        await self._app.session_files.flush()
        for message in await self._app.replayer.prompt(trace.key, scope, trace.turn):
            yield _format_line(message)

    async def _trace(self, reference: str, chat: str) -> tuple[TurnTrace, str]:
        """Return the turn of *reference* within *chat*, and its scope. Raises UserError."""
        trace = await self.find_trace(reference)
        scopes = {row.key: row.scope for row in await self._app.store.records.sessions()}
        if not self._is_within(trace.key, parse_chat(chat) if chat else None, scopes):
            raise no_such_turn(reference)
        return trace, scopes.get(trace.key, "")

    async def _lines(self, trace: TurnTrace) -> Sequence[Mapping[str, Any]]:
        """Return the transcript lines of a turn; () if it has none, or is not among the newest of its session."""
        turns = await self._app.memory.sessions.recent_turns(trace.key, limit=_SEARCHED)
        return next((lines for lines in turns if lines and lines[-1].get("turn") == trace.turn), ())

    async def _shared_scope(self, chat: SessionKey | None) -> str:
        """Return the scope of a shared chat, so that its private threads are left out; "" for a direct chat."""
        if chat is None:
            return ""
        from agent.base.scopes import chat_scope

        own = chat_scope(chat)
        return own if await self._app.store.records.has_session(chat, own) else ""

    def _is_within(self, key: SessionKey, chat: SessionKey | None, scopes: Mapping[SessionKey, str]) -> bool:
        from agent.base.scopes import chat_scope

        if chat is None or key == chat:
            return True
        return key.parent == chat and scopes.get(key) == chat_scope(chat)

    def _accounts(self, person: str) -> tuple[str, ...]:
        """Return the names of all accounts of a person, named as `channel:user_id`."""
        if not person:
            return ()
        channel, _, rest = person.partition(":")
        kinds = self._app.platforms
        account = PlatformAccount.from_input(f"{kinds.get(channel, channel)}:{rest}", has_teams=kinds.has_teams)
        links = self._app.store.links
        linked = [each.account for each in links.accounts_of_user(account.user)] or [account]
        users = (each.account.user for each in links.accounts_of_user(account))
        return tuple({each.name for each in (account, *linked, *users)})


def stage_spans(trace: TurnTrace, began: Mapping[str, datetime]) -> list[dict[str, Any]]:
    """Return the stages of a turn in order: their names, when they began, and for how long they ran.

    The stages whose limits are not known apart are one span. *began* has the stages that this process has seen.
    """
    rows, record = trace.inbox, trace.record or {}
    accepted = min((row["accepted_at"] for row in rows), default=None)
    sent = min((row["sent_at"] for row in rows), default=None)
    committed = max((row["ended_at"] for row in rows if row["ended_at"]), default=record.get("at"))
    delivered = max((part["at"] for part in trace.parts if part["state"] == "sent"), default=None)
    points: list[tuple[tuple[str, ...], datetime | None]] = [
        (("receive", "parse", "admit", "accept"), min(filter(None, (sent, accepted)), default=None)),
        (("queue",), accepted),
        (("claim",), began.get("claim")),
        (("assemble",), began.get("assemble")),
        (("think",), began.get("think")),
        (("commit",), began.get("commit")),
        (("deliver",), committed),
        ((), delivered),
    ]
    spans: list[dict[str, Any]] = []
    for names, at in points:
        if at is None and names not in ((), ("deliver",)) and spans:
            if names != ("queue",):
                spans[-1]["stages"] = [*spans[-1]["stages"], *names]
            continue
        if spans and at is not None and spans[-1]["seconds"] is None:
            spans[-1]["seconds"] = max(0.0, (at - spans[-1]["at"]).total_seconds())
        if names and at is not None:
            spans.append({"stages": list(names), "at": at, "seconds": None})
    return spans


def _failure_words(failure: str) -> str:
    """Return the sentence of a failure that a turn's record names; "" for none."""
    return translate(f"failures.{failure}", FALLBACK) if failure in BY_NAME else failure


def _tool_outcomes(lines: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the calls of tools with their outcomes, without arguments and results."""
    results = {line.get("tool_call_id"): line for line in lines if line.get("role") == "tool"}
    found: list[Line] = []
    for line in lines:
        for call in line.get("tool_calls") or ():
            result = results.get(call.get("id"), {})
            refused = str(result.get("refused", ""))
            outcome = "refused" if refused else "failed" if result.get("error") else "done" if result else "no result"
            name = str(call.get("function", call).get("name", ""))
            found.append({"name": name, "outcome": outcome, "rule": refused, "at": result.get("timestamp")})
    return found


def _format_line(line: Mapping[str, Any]) -> Line:
    """Return a transcript line or a message of a prompt as the console shows it, with a limit on its text."""
    by, content = line.get("by"), line.get("content")
    if isinstance(content, list):  # of a message with pictures
        content = "\n".join(str(part.get("text", "(a picture)")) for part in content)
    text = content if isinstance(content, str) else "" if content is None else str(content)
    return {
        "role": line["role"],
        "name": str(line.get("name") or (by.get("name", "") if isinstance(by, Mapping) else "")),
        "at": line.get("timestamp"),
        "text": text[:_LONGEST_TEXT],
        "is_cut": len(text) > _LONGEST_TEXT,
        "calls": [
            {name: str(call.get("function", call).get(name, ""))[:_LONGEST_TEXT] for name in ("name", "arguments")}
            for call in line.get("tool_calls") or ()
        ],
    }


def _parse_time(text: str) -> datetime | None:
    """Return a time of an argument: `2026-11-23T10:00Z`, or `2h` and `7d` for so long ago. Raises UserError."""
    if not text:
        return None
    if ago := re.fullmatch(r"(\d{1,5})([hd])", text):
        return datetime.now(UTC) - timedelta(hours=int(ago[1]) * (1 if ago[2] == "h" else 24))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{text!r} is not a time; write one such as 2026-11-23T10:00Z, 2h or 7d") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_MOST_RUNS = 50
_MOST_TRIES = 10  # of a stop, between which the task made a step


class TaskOperations(OperationGroup):
    """The operations `tasks list|stop|runs`. With a `chat`, they find nothing outside of it."""

    @operation("tasks list", Role.ADMIN, audit=AuditRule.CALL)
    async def list_tasks(self, chat: str = "") -> AsyncIterator[Line]:
        """Yield a line per background task of the last week, and per scheduled request that is still to come.

        `text` is null for those of other people's direct chats.
        """
        from agent.tasks.task import TASK, TASK_END, tasks_in

        key = parse_chat(chat) if chat else None
        found = [each for kind in (TASK, TASK_END) for each in await self._jobs(kind, key)]
        tasks = [(job.scope, task) for job in found for task in tasks_in([job])]
        tasks.sort(key=lambda each: (each[1].state.is_over, -each[1].set_at.timestamp()))
        scheduled = sorted(await self._scheduled(key), key=lambda each: each[1].due)
        for scope, task in tasks[:_MOST]:
            yield self._task_line(scope, task)
        for scope, reminder in scheduled[:_MOST]:
            yield self._scheduled_line(scope, reminder)

    @operation("tasks stop", Role.ADMIN, {"id"}, audit=AuditRule.CALL, subject="id")
    async def stop(self, id_: str = "", chat: str = "") -> AsyncIterator[Line]:
        """Stop a background task, and notify its chat. Raises UserError for one that has ended."""
        from agent.tasks.task import TASK, TaskState, tasks_in

        key = parse_chat(chat) if chat else None
        for _ in range(_MOST_TRIES):
            found = [(job, task) for job in await self._jobs(TASK, key) for task in tasks_in([job]) if task.id == id_]
            if not found:
                raise UserError(f"no running task is called {id_!r}; it may have ended meanwhile")
            ((job, task),) = found
            cancelled = task.end(TaskState.CANCELLED, self._app.now())
            if await self._app.store.jobs.advance(job, cancelled.to_job(job.scope)):
                self._app.interrupt_task(task.id)
                yield self._task_line(job.scope, cancelled)
                return
        raise UserError(f"the task {id_!r} is being changed again and again; try once more")

    @operation("tasks runs", Role.ADMIN, {"id"})
    async def runs(self, id_: str = "", chat: str = "") -> AsyncIterator[Line]:
        """Yield a line per run of a scheduled request in the last 30 days, the newest first."""
        key = parse_chat(chat) if chat else None
        reminder = next((each for _, each in await self._scheduled(key) if each.id == id_), None)
        if reminder is None:
            raise UserError(f"no scheduled request is called {id_!r}; it may be over, or have been cancelled")
        for run in await self._app.reminders.runs(reminder, limit=_MOST_RUNS):
            yield {**plain(run), "reference": short_turn_id(run.turn) if run.turn else ""}

    async def _jobs(self, kind: str, chat: SessionKey | None) -> Sequence[Job]:
        """Return the jobs of *kind*, of all or of one shared chat without its private threads."""
        from agent.base.scopes import chat_scope

        found = await self._app.store.jobs.pending_of(kind)
        return found if chat is None else [each for each in found if each.scope == chat_scope(chat)]

    async def _scheduled(self, chat: SessionKey | None) -> list[tuple[str, Reminder]]:
        """Return the scheduled requests that are still to come, with their scopes."""
        from agent.reminders.reminder import REMIND, reminders_in

        found = [(job.scope, each) for job in await self._jobs(REMIND, chat) for each in reminders_in([job])]
        return [(scope, each) for scope, each in found if not each.is_fired and not each.is_snoozed]

    def _task_line(self, scope: str, task: Task) -> Line:
        return {
            **self._common(scope, task.id, task.person, task.key, task.goal),
            "kind": "task",
            "state": str(task.state),
            "is_over": task.state.is_over,
            **plain({"at": task.set_at, "started_at": task.started_at, "ended_at": task.ended_at}),
            "steps": task.model_calls,
            "tokens": task.tokens,
            "known_cost": task.dollars,
        }

    def _scheduled_line(self, scope: str, reminder: Reminder) -> Line:
        from agent.reminders.reminder import DO

        return {
            **self._common(scope, reminder.id, reminder.person, reminder.key, reminder.text),
            "kind": "request" if reminder.kind == DO else "reminder",
            "state": f"paused: {reminder.paused}" if reminder.paused else "waiting",
            "is_over": False,
            **plain({"at": reminder.set_at, "due": None if reminder.paused else reminder.due}),
            "repeat": reminder.repeat,
        }

    def _common(self, scope: str, id_: str, person: str, key: SessionKey, text: str) -> dict[str, Any]:
        return {
            "id": id_,
            "who": PlatformAccount.from_name(person).label,
            "chat": str(key),
            "text": text if self.may_read(scope) else None,
        }
