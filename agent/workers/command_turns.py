"""Turns that are commands, queued or control, and turns that ask for an approval."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence

from agent.base import transcript_lines as build
from agent.commands.command import CommandContext, CommandReply, ParsedCommand, actor_of
from agent.memory.jobs.approval_questions import question
from agent.tools.tool_questions import ToolQuestion, denial_prefix, jobs_prefix
from agent.turns.prompt_assembly import speaker_fields
from agent.turns.turn import Turn
from agent.workers.turn_services import TurnServices, build_reply
from gateway.events import OutboundKind, OutboundMessage, short_turn_id
from gateway.i18n import translate
from gateway.i18n.failures import BY_NAME, failure_line
from gateway.ports.journal import AuditEntry, Line, MessageOutcome
from gateway.text import append_commands


class CommandTurnRunner:
    """Runs commands to their commit."""

    def __init__(self, services: TurnServices) -> None:
        self._services = services

    async def run_command(self, turn: Turn, command: ParsedCommand) -> MessageOutcome:
        """Run a command that waited in the session queue."""
        services = self._services
        await services.load_conversation(turn)
        reply = await services.router.run(command, self._context(turn, command))
        services.add_notes(turn)
        return await self._finish(
            turn,
            reply,
            ends=_ended_by_new(turn) if reply.new_transcript else (),
            new_transcript=new_transcript() if reply.new_transcript else "",
        )

    async def run_question(self, turn: Turn, scope: str) -> MessageOutcome:
        """Ask about the changes of *scope* that wait for approval here; say nothing if none is left to ask about."""
        services, staging = self._services, self._services.commands.staging
        await services.load_conversation(turn)
        # A session whose scope has changed (an account was unlinked) must not learn about the other scope.
        is_here = scope == turn.scope == turn.lease.session.scope
        pending = await staging.pending_changes(scope) if is_here else []
        # Changes that an earlier attempt of this very turn noted before a crash were not asked about.
        unasked = [each for each in pending if each.session == str(turn.key) and each.asked in ("", turn.id)]
        services.add_notes(turn)
        outbound: tuple[OutboundMessage, ...] = ()
        if unasked:
            text, buttons = question(unasked, turn.language, is_shared=turn.is_shared)
            await staging.note_asked(scope, [each.name for each in unasked], turn.id)
            turn.draft.add(build.notice(turn.id, append_commands(text, buttons), services.now()))
            outbound = build_reply(turn, text, OutboundKind.NOTICE, choices=buttons)
        return await services.finish(turn, MessageOutcome.ANSWERED, outbound)

    async def run_control(self, turn: Turn) -> None:
        """Run a control command, unless its sender may no longer write."""
        command = self._services.router.parse(turn.message)
        if not turn.is_admitted:
            reply = CommandReply(text=translate("commands.revoked", turn.language), is_private=True)
            await self._finish(turn, reply, MessageOutcome.REFUSED)
            return
        reply = CommandReply(text=translate("commands.button_gone", turn.language), is_private=True)
        if command is not None:
            reply = await self._services.router.run(command, self._context(turn, command))
        await self._finish(turn, reply)

    async def dead_letter_control(self, turn: Turn) -> None:
        """Commit a control command that failed as dead-lettered, and notify its sender."""
        reply = CommandReply(text=failure_line(BY_NAME["bug"], short_turn_id(turn.id), turn.language))
        await self._finish(turn, reply, MessageOutcome.DEAD, failure="bug")

    async def _finish(
        self,
        turn: Turn,
        reply: CommandReply,
        outcome: MessageOutcome = MessageOutcome.ANSWERED,
        *,
        failure: str = "",
        ends: tuple[str, ...] = (),
        new_transcript: str = "",
    ) -> MessageOutcome:
        """Commit *reply*, the result of a command, or what is said of one that was not run to its end."""
        if outcome is MessageOutcome.ANSWERED:
            audit = self._audit(turn, reply.audit, reply.outcome, reply.whom)
        else:
            audit = self.audit_unfinished(turn, outcome)
        turn.draft.add(self._command_line(turn, reply))
        return await self._services.finish(
            turn,
            outcome,
            _outbound(turn, reply),
            failure=failure,
            ends=(*reply.ends, *ends),
            jobs=reply.jobs,
            advances=reply.advances,
            audit=audit,
            new_transcript=new_transcript,
        )

    def audit_unfinished(self, turn: Turn, outcome: MessageOutcome) -> AuditEntry | None:
        """Return the audit line of a command that did not end by itself; None if it decides nothing.

        It may have taken effect before it was ended, so the line must not be missing.
        """
        command = self._services.router.parse(turn.message)
        label = self._services.router.audit_label(command, self._context(turn, command)) if command is not None else ""
        return self._audit(turn, label, outcome.value)

    def audit_questions(self, turn: Turn, questions: Sequence[ToolQuestion]) -> AuditEntry | None:
        """Return the audit line of the calls that *turn* asks about; None if none exist."""
        names = ", ".join(each.tool for each in questions)
        return self._audit(turn, f"tools ask {names}", "asked") if questions else None

    def _audit(self, turn: Turn, label: str, outcome: str, subject: str = "") -> AuditEntry | None:
        if not label:
            return None
        return AuditEntry(
            id=turn.id,
            at=self._services.now(),
            by=actor_of(turn.message),
            where=str(turn.key),
            what=label,
            whom=subject,
            outcome=outcome,
        )

    def _command_line(self, turn: Turn, reply: CommandReply) -> Line:
        # A private answer never joins a shared transcript.
        is_private = reply.is_private or turn.message.is_ephemeral
        is_hidden = reply.is_secret or (is_private and turn.is_shared)
        text = "" if is_hidden else append_commands(reply.transcript_reply or reply.text, reply.choices)
        fields = speaker_fields(turn.message) | {"seen": build.format_time(turn.row.accepted_at)}
        return build.command(turn.id, reply.transcript_text or turn.message.text, text, self._services.now(), **fields)

    def _context(self, turn: Turn, command: ParsedCommand) -> CommandContext:
        services = self._services
        return CommandContext(
            turn=turn,
            args=command.args,
            now=services.now(),
            services=services.commands,
            commands=services.router.commands,
        )


def _outbound(turn: Turn, reply: CommandReply) -> tuple[OutboundMessage, ...]:
    answer = build_reply(
        turn, reply.text, OutboundKind.NOTICE, reply.is_private, choices=reply.choices, settles=reply.settles
    )
    return (*answer, *reply.also)


def _ended_by_new(turn: Turn) -> tuple[str, ...]:
    """Return the prefixes of jobs that end with the transcript: its questions, and denials that nobody reads now."""
    return (jobs_prefix(turn.key), denial_prefix(turn.key))


def new_transcript() -> str:
    """Return 16 random base32 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode("ascii").lower()
