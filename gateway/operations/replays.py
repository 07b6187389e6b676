"""Operator commands that run stored turns again: one with its recorded answers, or the newest with another model."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from gateway.control import Line
from gateway.control.registry import AuditRule, Call, CommandConfirmation, argument, operation, option, plain
from gateway.errors import NothingToReplay, UserError
from gateway.events import MessagePart, Role, short_turn_id
from gateway.operations.group import OperationGroup, format_time, parse_chat
from gateway.ports.access import ACTING
from gateway.ports.journal import PendingDelivery
from gateway.store.inspection import TurnQuery, TurnSummary

if TYPE_CHECKING:
    from agent.llm.chat_model import TokenUsage
    from agent.llm.model_client import ModelClient
    from agent.turns.recorded_turn import OtherAnswer, ReplayBudget, ReplayReport, ReplaySpending

_MOST_LINES = 40  # of one difference
_MOST_TURNS = 500  # of one comparison
_SEARCHED = 5_000  # newest turns, in which those with an answer are looked for
_LONGEST_TEXT = 20_000  # characters of one message, answer or argument
_LONGEST_QUESTION = 200  # characters of it above the answers in a terminal
_HEARTBEAT = 1.0  # seconds, within which a caller who has left is noticed
_MOST_FAILURES = 3  # turns in a row that the model did not answer
_MARGIN = 2  # the bound of a comparison, in estimates
_LEAST_BOUND = 0.01  # US dollars

ModelName = Annotated[
    str, option("Ask this model, too, with the same prompts; it is sent the conversation, and bills it.")
]
Newest = Annotated[
    int, option("Instead of one turn, the newest so many that a model answered.", least=0, most=_MOST_TURNS)
]
InChat = Annotated[str, option("With --last: of this chat and its threads alone.")]


@dataclass(frozen=True, slots=True)
class _ChosenTurn:
    summary: TurnSummary
    scope: str


def replay_rows(lines: Sequence[Line], arguments: Line) -> Iterable[str]:
    """Yield the report of one turn, or the turns of a comparison, as rows of text."""
    if not arguments.get("last"):
        yield from report_rows(lines, arguments)
        return
    turns = [line for line in lines if "turn" in line]
    for line in turns:
        yield from _comparison_rows(line)
    if (end := next((line for line in lines if "compared" in line), None)) is None:
        yield f"interrupted after {len(turns)} turns; the model was sent nothing more"
        return
    yield _totals(end)
    if end["stopped"]:
        yield f"stopped: {end['stopped']}"


def report_rows(lines: Sequence[Line], _: Line) -> Iterable[str]:
    """Yield the report of a replay as rows of text."""
    if not lines:  # interrupted before it came
        return
    (line,) = lines
    count = len(line["differences"])
    yield f"{line['turn']}: {line['replies']} recorded answers, {count or 'no'} difference{'' if count == 1 else 's'}"
    for each in line["differences"]:
        yield ""
        yield f"{each['where']}:"
        yield from _difference(each["then"], each["now"])
    for note in line["notes"]:
        yield f"note: {note}"
    if line["other"] is not None:
        yield ""
        yield f"recorded, {line['model'] or 'unknown model'}:"
        yield line["answer"]
        yield ""
        yield from _other_rows(line["other"])


def _comparison_rows(line: Line) -> Iterable[str]:
    yield f"{line['reference']}  {format_time(line['at'])}  {line['key']}"
    if line["skipped"]:
        yield f"  not replayed: {line['skipped']}"
        yield ""
        return
    question = " ".join(line["question"].split())
    yield f"> {question[:_LONGEST_QUESTION]}{'…' if len(question) > _LONGEST_QUESTION else ''}"
    recorded = line["recorded"]
    yield f"recorded, {line['model'] or 'unknown model'} ({_format_spent(recorded['tokens'], recorded['cost'])}):"
    yield line["answer"]
    for call in line["calls"]:
        yield f"call: {call['name']} {call['arguments']}"
    yield from _other_rows(line["other"])
    yield ""


def _other_rows(other: Line) -> Iterable[str]:
    yield f"now, {other['model']} ({_format_spent(other['tokens'], other['cost'])}):"
    yield other["text"] or f"(no answer: {other['failure']})"
    for call in other["calls"]:
        how = "with the recorded result" if call["is_recorded"] else "not run"
        yield f"call: {call['name']} {call['arguments']} ({how})"


def _format_spent(tokens: Line, cost: float | None) -> str:
    cached = f" ({100 * tokens['cached'] // tokens['input']}% from the cache)" if tokens["input"] else ""
    price = "unknown cost" if cost is None else f"${cost:.4f}"
    return f"{tokens['input']:,} tokens in{cached}, {tokens['output']:,} out, {price}"


def _totals(end: Line) -> str:
    then, now = end["recorded"], end["other"]
    return (
        f"{end['compared']} of {end['of']} turns compared, {end['skipped']} not replayed, {end['failed']} without an"
        f" answer\n  recorded: {_format_spent(then['tokens'], then['cost'])}"
        f"\n  {end['model']}: {_format_spent(now['tokens'], now['cost'])}"
    )


def _difference(then: str, now: str) -> Iterable[str]:
    if "\n" not in then + now:
        yield f"  then: {then or '(nothing)'}"
        yield f"  now:  {now or '(nothing)'}"
        return
    rows = list(difflib.unified_diff(then.splitlines(), now.splitlines(), "then", "now", lineterm="", n=1))
    yield from (f"  {row}" for row in rows[:_MOST_LINES])
    if len(rows) > _MOST_LINES:
        yield f"  … {len(rows) - _MOST_LINES} more lines; --json prints all"


def _confirm_comparison(call: Call, arguments: Line) -> CommandConfirmation | None:
    """Return the question before a comparison, with the estimate and the bound of its cost; None for one turn."""
    if not arguments.get("last"):
        return None
    sent = {name: arguments[name] for name in ("model", "last", "chat", "max_usd")}
    (plan,) = call("replay plan", sent)
    bounds = {"max_usd": plan["max_usd"], "max_tokens": plan["max_tokens"]}
    return CommandConfirmation(plan["question"], plan["text"], bounds)


class ReplayOperations(OperationGroup):
    """The operations `replay` and `replay plan`.

    At the machine, they find every turn, as the operator can read the transcripts themselves. A caller at the console
    gets their own direct chats, and only to compare models.
    """

    @operation("replay plan", Role.OWNER, {"model", "last", "max_usd"})
    async def plan(self, model: str, last: int, chat: str = "", max_usd: float = 0.0) -> AsyncIterator[Line]:
        """Yield one line: the turns that `replay` would compare, estimates of tokens and cost, and the question.

        `cost` is without the provider's cache, null for a model without a known price; `max_usd`, or for such a model
        `max_tokens`, is the bound to call `replay` with.
        """
        chosen = await self._choose(last, chat)
        client = self._app.replayer.open_model(_require_model(model))
        try:
            yield await self._estimate(client, chosen, max_usd)
        finally:
            await client.close()

    @operation(
        "replay",
        Role.OWNER,
        {"model", "last", "max_usd", "max_tokens"},
        audit=AuditRule.CALL,
        subject="model",
        show=replay_rows,
        confirm=_confirm_comparison,
        has_progress=True,
        exit_code=lambda lines: 1 if any(line.get("differences") for line in lines) else 0,
    )
    async def replay(
        self,
        reference: Annotated[str, argument("The turn, as `parlour turn` names it.")] = "",
        model: ModelName = "",
        last: Newest = 0,
        chat: InChat = "",
        max_usd: Annotated[
            float, option("With --last: US dollars before which it stops; twice the estimate by default.", least=0)
        ] = 0.0,
        max_tokens: int = 0,
    ) -> AsyncIterator[Line]:
        """Run a stored turn again with its recorded answers, or the newest turns with another model.

        Shows what is different today, or both answers with calls, tokens and cost. Nothing is stored or sent to a chat,
        and no tool runs. Exit code 1 if something is different, and 4 if there is nothing to replay: the turn asked no
        model, its words were erased, or they were removed by age.
        """
        if last:
            if reference:
                raise UserError("name a turn, or the newest ones with --last, not both")
            async for line in self._compare(_require_model(model), await self._choose(last, chat), max_usd, max_tokens):
                yield line
            return
        if not reference or ACTING.get() is not None:
            raise UserError("name a turn, or compare the newest ones: --model NAME --last 20")
        yield await self._replay_one(reference, model)

    async def _replay_one(self, reference: str, model: str) -> Line:
        app, trace = self._app, await self.find_trace(reference)
        if trace.record is None:
            if not trace.inbox:  # retention or an erasure has removed it
                raise NothingToReplay(f"the messages of turn {trace.turn} are not stored any more")
            raise UserError(f"turn {trace.turn} has not ended yet")
        scopes = {row.key: row.scope for row in await app.store.records.sessions()}
        report = await app.replayer.replay(
            trace.key,
            scopes.get(trace.key, ""),
            trace.turn,
            failure=str(trace.record["failure"]),
            model=model,
        )
        for delivery in await app.store.outbox.messages_of(trace.turn):
            self._compare_parts(report, delivery)
        return {
            "turn": trace.turn,
            "reference": short_turn_id(trace.turn),
            **plain({name: getattr(report, name) for name in ("model", "answer", "replies", "notes")}),
            "differences": [asdict(each) for each in report.differences],
            "other": None if report.other is None else _format_other(report.other),
        }

    def _compare_parts(self, report: ReplayReport, delivery: PendingDelivery) -> None:
        """Compare the parts that were sent with those that today's code makes of the same message."""
        message, parts = delivery.message, delivery.parts
        if message.id.endswith(".0") or not parts:
            return
        if not message.text and not any(each.part.plain for each in parts):
            report.notes.append(f"message {message.id}: its text is not kept any more; its parts are not compared")
            return
        planned = self._app.dispatcher.plan_parts(message)
        if planned is None:
            report.notes.append(f"message {message.id}: no gateway runs that can render it; not compared")
        elif delivery.preview is not None and len(parts) > 1:
            report.notes.append(f"message {message.id} took over a preview, on which its parts depend; not compared")
        else:
            report.compare(
                f"parts of {message.id}", [_part_content(each.part) for each in parts], [*map(_part_content, planned)]
            )

    # -- another model -------------------------------------------------------------------------------

    async def _choose(self, last: int, chat: str) -> list[_ChosenTurn]:
        """Return the newest *last* answered turns that the caller may replay: chat by chat, the oldest first.

        In this order a provider's cache serves the prompts of a conversation as it did then. Raises UserError
        without any.
        """
        if not 1 <= last <= _MOST_TURNS:
            raise UserError(f"name a number of turns from 1 to {_MOST_TURNS}")
        own, accounts = self._own_person()
        if own and self._app.settings.memory.isolation == "shared":
            raise UserError(
                "all chats share one memory here (memory.isolation: shared), so those of one person cannot be told"
                " apart; compare all of them on the gateway's machine: `parlour replay --model NAME --last 20`"
            )
        scopes = {row.key: row.scope for row in await self._app.store.records.sessions()}
        query = TurnQuery(chat=parse_chat(chat) if chat else None, accounts=accounts, limit=_SEARCHED)
        found = [
            _ChosenTurn(each, scopes[each.key])
            for each in await self._app.store.journal.find_turns(query)
            if each.outcome == "answered" and not each.failure and each.calls and each.key in scopes
        ]
        oldest_first = [each for each in found if own in ("", each.scope)][:last][::-1]
        if not oldest_first:
            raise UserError("there is no turn that a model answered" + (f" in {chat}" if chat else ""))
        order = {key: n for n, key in enumerate(dict.fromkeys(each.summary.key for each in oldest_first))}
        return sorted(oldest_first, key=lambda each: order[each.summary.key])

    def _own_person(self) -> tuple[str, tuple[str, ...]]:
        """Return the scope and the accounts of the caller at the console; nothing at the machine, which reads all."""
        acting = ACTING.get()
        if acting is None:
            return "", ()
        channel, _, who = acting.by.partition(":")
        links = self._app.store.links
        person = links.person(self._app.roster.account(channel, who))
        accounts = [each.account for each in links.accounts(person)]
        return f"people/{person}", tuple(
            {person, *(each.name for each in accounts), *(each.user.name for each in accounts)}
        )

    async def _estimate(self, client: ModelClient, chosen: Sequence[_ChosenTurn], max_usd: float) -> Line:
        from agent.llm.chat_model import TokenUsage

        await self._app.session_files.flush()
        tokens_in = tokens_out = skipped = 0
        cost = None if await client.price(TokenUsage(1, 1)) is None else 0.0
        if cost is None and max_usd:
            raise UserError(
                f"the price of {client.name} is not known, so dollars cannot bound it: leave --max-usd out, or set"
                " usd_per_million_input and usd_per_million_output of the model in llm.models"
            )
        for each in chosen:
            try:
                requests = await self._app.replayer.weigh(each.summary.key, each.scope, each.summary.turn)
            except UserError:
                skipped += 1
                continue
            for request in requests:
                tokens_in += request.input
                tokens_out += request.output
                if cost is not None:
                    cost += await client.price(request) or 0.0
        usd = 0.0 if cost is None else max_usd or max(_LEAST_BOUND, round(cost * _MARGIN, 2))
        tokens = _MARGIN * (tokens_in + tokens_out) if cost is None else 0
        count, chats = len(chosen) - skipped, len({each.summary.key for each in chosen})
        price = "its price is not known" if cost is None else f"${cost:.2f} by its price, without its cache"
        text = (
            f"{count} turns of {chats} chats are sent to {client.name}, whose provider reads and bills them: about"
            f" {tokens_in:,} tokens in and {tokens_out:,} out, {price}. Nothing is stored or sent to a chat, and no"
            f" tool runs.{f' {skipped} turns can no longer be replayed.' if skipped else ''}"
        )
        bound = f"${usd:.2f}" if tokens == 0 else f"{tokens:,} tokens"
        return {
            "model": client.name, "turns": count, "chats": chats, "skipped": skipped, "tokens_in": tokens_in,
            "tokens_out": tokens_out, "cost": cost, "max_usd": usd, "max_tokens": tokens,
            "text": text, "question": f"Send them, and stop before {bound}?",
        }  # fmt: skip

    async def _compare(
        self, model: str, chosen: Sequence[_ChosenTurn], max_usd: float, max_tokens: int
    ) -> AsyncIterator[Line]:
        """Yield lines of progress, one line per turn, and one with the sums."""
        from agent.llm.chat_model import TokenUsage
        from agent.turns.recorded_turn import ReplayBudget, ReplayStopped

        client = self._app.replayer.open_model(model)
        try:
            yield {"done": 0, "of": len(chosen)}
            if not max_tokens and (not max_usd or await client.price(TokenUsage(1, 1)) is None):
                plan = await self._estimate(client, chosen, max_usd)
                max_usd, max_tokens = plan["max_usd"], plan["max_tokens"]
            budget = ReplayBudget(usd=max_usd, tokens=max_tokens)
            sums = _Sums(client.name, len(chosen))
            for done, each in enumerate(chosen):
                turn = asyncio.create_task(self._compare_one(each, client, budget), name="replay")
                try:
                    while not turn.done():
                        await asyncio.wait({turn}, timeout=_HEARTBEAT)
                        if not turn.done():
                            yield {"done": done, "of": len(chosen)}
                    line = turn.result()
                except ReplayStopped as reason:
                    sums.stopped = str(reason)
                    break
                finally:
                    turn.cancel()  # the caller has left: the model is asked no more
                sums.add(line)
                yield line
                yield {"done": done + 1, "of": len(chosen)}
                if sums.failures_in_a_row == _MOST_FAILURES:
                    sums.stopped = f"{client.name} did not answer {_MOST_FAILURES} turns in a row"
                    break
            yield sums.line(budget.spent)
        finally:
            await client.close()

    async def _compare_one(self, chosen: _ChosenTurn, client: ModelClient, budget: ReplayBudget) -> Line:
        each = chosen.summary
        line: dict[str, Any] = {
            "turn": each.turn, "reference": short_turn_id(each.turn), "key": str(each.key), "at": plain(each.at),
            "skipped": "",
        }  # fmt: skip
        try:
            found = await self._app.replayer.compare(each.key, chosen.scope, each.turn, client, budget)
        except UserError as error:
            return {**line, "skipped": str(error)}
        trace = await self._app.store.journal.trace(each.turn)
        usage = [row for row in trace.usage if row.purpose == "answer"] if trace is not None else []
        costs = [row.cost for row in usage]
        return {
            **line,
            "question": found.question[:_LONGEST_TEXT],
            "model": found.model,
            "answer": found.answer[:_LONGEST_TEXT],
            "calls": [_format_call(call) for call in found.calls],
            "recorded": {
                "tokens": {
                    "input": sum(row.tokens_in for row in usage),
                    "output": sum(row.tokens_out for row in usage),
                    "cached": sum(row.tokens_cached for row in usage),
                },
                "cost": None if None in costs else sum(cost or 0.0 for cost in costs),
            },
            "other": _format_other(found.other),
        }


class _Sums:
    """The sums of a comparison."""

    def __init__(self, model: str, total: int) -> None:
        self.model = model
        self.total = total
        self.stopped = ""
        self.failures_in_a_row = 0
        self._counts = {"compared": 0, "skipped": 0, "failed": 0}
        self._recorded: dict[str, Any] = {"tokens": {"input": 0, "output": 0, "cached": 0}, "cost": 0.0}

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one turn."""
        if line["skipped"]:
            self._counts["skipped"] += 1
            return
        self._counts["compared"] += 1
        has_failed = bool(line["other"]["failure"])
        self._counts["failed"] += has_failed
        self.failures_in_a_row = self.failures_in_a_row + 1 if has_failed else 0
        sums, one = self._recorded, line["recorded"]
        sums["tokens"] = {each: sums["tokens"][each] + one["tokens"][each] for each in sums["tokens"]}
        sums["cost"] = None if sums["cost"] is None or one["cost"] is None else sums["cost"] + one["cost"]

    def line(self, spending: ReplaySpending) -> Line:
        """Return the last line of a comparison, which cost *spending*: also on a turn that it did not finish."""
        other = {"tokens": _format_tokens(spending.tokens), "cost": spending.cost}
        sums = {"recorded": self._recorded, "other": other}
        return {**self._counts, "of": self.total, "model": self.model, "stopped": self.stopped, **sums}


def _require_model(model: str) -> str:
    if not model.strip():
        raise UserError("name the model to compare with: --model NAME, one of llm.models or as litellm names it")
    return model.strip()


def _part_content(part: MessagePart) -> tuple[str, str, str]:
    return (part.payload, part.plain, part.file.name if part.file is not None else "")


def _format_call(call: Any) -> dict[str, Any]:
    from agent.tools.deferred_tools import inner_call  # which other commands do without

    call = inner_call(call)
    return {"name": call.name, "arguments": call.arguments[:_LONGEST_TEXT]}


def _format_other(other: OtherAnswer) -> dict[str, Any]:
    calls = [{**_format_call(call), "is_recorded": is_recorded} for call, is_recorded in other.calls]
    tokens = _format_tokens(other.tokens)
    return {**asdict(other), "text": other.text[:_LONGEST_TEXT], "tokens": tokens, "calls": calls}


def _format_tokens(tokens: TokenUsage) -> dict[str, int]:
    return {name: getattr(tokens, name) for name in ("input", "output", "cached")}
