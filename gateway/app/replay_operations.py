"""Operator command `replay`: run a stored turn again with its recorded answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gateway.app.operation_group import OperationGroup, operation, plain
from gateway.control import Line
from gateway.errors import UserError
from gateway.events import MessagePart, short_turn_id
from gateway.ports import PendingDelivery

if TYPE_CHECKING:
    from agent.recorded_turn import ReplayReport


class ReplayOperations(OperationGroup):
    """The operation `replay`. It is the machine's own: the console does not offer it."""

    @operation("replay")
    async def replay(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield one line: differences, notes, the recorded answer, and that of the `model` if one is named."""
        app, trace = self._app, await self.find_trace(arguments)
        if trace.record is None:
            raise UserError(f"turn {trace.turn} has not ended yet")
        await app.projector.flush()
        scopes = {row.key: row.scope for row in await app.store.records.sessions()}
        report = await app.replayer.replay(
            trace.key,
            scopes.get(trace.key, ""),
            trace.turn,
            failure=str(trace.record["failure"]),
            model=str(arguments.get("model") or ""),
        )
        for delivery in await app.store.outbox.messages_of(trace.turn):
            self._compare_parts(report, delivery)
        other = report.other
        yield {
            "turn": trace.turn,
            "reference": short_turn_id(trace.turn),
            **plain({name: getattr(report, name) for name in ("model", "answer", "replies", "notes")}),
            "differences": [asdict(each) for each in report.differences],
            "other": None
            if other is None
            else {**asdict(other), "calls": [_format_call(*each) for each in other.calls]},
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


def _part_content(part: MessagePart) -> tuple[str, str, str]:
    return (part.payload, part.plain, part.file.name if part.file is not None else "")


def _format_call(call: Any, is_recorded: bool) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments, "is_recorded": is_recorded}
