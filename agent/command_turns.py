"""Turns that are commands: in their lane, or passing it."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace

from agent.commands import CommandContext, CommandReply, ParsedCommand
from agent.commands.command_context import actor_of
from agent.memory.jobs.approval_questions import question
from agent.memory.storage import transcript_lines as build
from agent.prompt_assembly import speaker_fields
from agent.turn_draft import TurnDraft
from agent.turn_services import TurnServices, build_reply
from agent.worker_pool import RunningTurn
from gateway.events import ChatKind, OutboundKind, OutboundMessage, Role, short_turn_id, turn_id
from gateway.i18n import translate
from gateway.i18n.failures import BY_NAME, failure_line
from gateway.ports import AuditEntry, InboxRow, Line, MessageOutcome, TurnCommit, TurnLease
from gateway.text import append_commands


class CommandTurnRunner:
    """Runs commands to their commit."""

    def __init__(self, rooms: TurnServices) -> None:
        self._rooms = rooms

    async def run_command(self, running: RunningTurn, typed: ParsedCommand) -> None:
        """Run a command that waited in its lane."""
        lease = running.lease
        conversation, place = await self._rooms.open(lease)
        reply = await self._rooms.router.run(typed, self._command(lease, typed))
        audit = self._audit(lease, reply.audit, reply.outcome, reply.whom)
        draft = TurnDraft(lease, place.scope)
        now = self._rooms.now()
        for row in lease.notes:
            draft.add(self._rooms.context.note(draft, row, place.zone, conversation.speaker_names))
        draft.add(self._command_line(lease, reply))
        record = draft.record(MessageOutcome.ANSWERED, now)
        if reply.new_transcript:
            record = replace(record, new_transcript=new_transcript())
        told = _told(lease, reply)
        await self._rooms.commit(running, conversation, record, told, draft, reply.jobs, audit)
        if reply.new_transcript:
            self._rooms.conversations.forget(lease.key)

    async def run_question(self, running: RunningTurn, scope: str) -> None:
        """Ask about what waits in *scope* and arose here; nothing is said when it was asked or decided meanwhile."""
        lease = running.lease
        house, is_shared = self._rooms.house, lease.rows[0].message.chat_kind is ChatKind.GROUP
        conversation, place = await self._rooms.open(lease)
        # A session that has another scope by now (an account was unlinked) must not hear of this one's.
        is_here = scope == place.scope == lease.session.scope
        found = await house.staging.pending_changes(scope) if is_here else []
        # What an attempt of this very turn noted before a crash was not asked yet.
        wanted = [each for each in found if each.session == str(lease.key) and each.asked in ("", lease.turn)]
        draft = TurnDraft(lease, place.scope)
        for row in lease.notes:
            draft.add(self._rooms.context.note(draft, row, place.zone, conversation.speaker_names))
        told: tuple[OutboundMessage, ...] = ()
        if wanted:
            text, choices = question(wanted, self._rooms.language(lease.rows[0]), is_shared=is_shared)
            await house.staging.note_asked(scope, [each.name for each in wanted], lease.turn)
            draft.add(build.notice(lease.turn, append_commands(text, choices), self._rooms.now()))
            told = build_reply(lease, text, OutboundKind.NOTICE, choices=choices)
        record = draft.record(MessageOutcome.ANSWERED, self._rooms.now())
        await self._rooms.commit(running, conversation, record, told, draft)

    async def control(self, row: InboxRow, role: Role | None) -> None:
        """Run a command that does not wait in its lane, by what its sender may decide now; None = not even speak."""
        typed = self._rooms.router.parse(row.message)
        lease = await self._lease_of(replace(row, role=role or row.role))
        reply = CommandReply(text=translate("commands.button_gone", self._rooms.language(row)), is_private=True)
        if role is None:
            reply = CommandReply(text=translate("commands.revoked", self._rooms.language(row)), is_private=True)
        elif typed is not None:
            reply = await self._rooms.router.run(typed, self._command(lease, typed))
        audit = (
            self.unfinished(lease, MessageOutcome.REFUSED)
            if role is None
            else self._audit(lease, reply.audit, reply.outcome, reply.whom)
        )
        draft = TurnDraft(lease, self._rooms.place(row).scope)
        draft.add(self._command_line(lease, reply))
        record = draft.record(MessageOutcome.REFUSED if role is None else MessageOutcome.ANSWERED, self._rooms.now())
        told = _told(lease, reply)
        await self._rooms.journal.settle(row, TurnCommit(record=record, outbound=told, jobs=reply.jobs, audit=audit))

    async def dead_letter_control(self, row: InboxRow) -> None:
        """Settle a control command that failed and tell its sender."""
        lease = await self._lease_of(row)
        line = failure_line(BY_NAME["bug"], short_turn_id(lease.turn), self._rooms.language(row))
        draft = TurnDraft(lease, self._rooms.place(row).scope)
        draft.add(self._command_line(lease, CommandReply(text=line)))
        record = draft.record(MessageOutcome.DEAD, self._rooms.now(), failure="bug")
        self._rooms.meter.count("turn_failures", failure="bug")
        told = build_reply(lease, line, OutboundKind.NOTICE)
        audit = self.unfinished(lease, MessageOutcome.DEAD)
        await self._rooms.journal.settle(row, TurnCommit(record=record, outbound=told, audit=audit))

    def unfinished(self, lease: TurnLease, outcome: MessageOutcome) -> AuditEntry | None:
        """Return the audit line of a turn that ends in another way than its command's; None where none decides.

        What it decided may have been done before its end, so that the line must not be missing.
        """
        typed = self._rooms.router.parse(lease.rows[0].message)
        label = self._rooms.router.audited(typed, self._command(lease, typed)) if typed is not None else ""
        return self._audit(lease, label, outcome.value)

    def _audit(self, lease: TurnLease, what: str, outcome: str, whom: str = "") -> AuditEntry | None:
        if not what:
            return None
        return AuditEntry(
            id=lease.turn,
            at=self._rooms.now(),
            by=actor_of(lease.rows[0].message),
            where=str(lease.key),
            what=what,
            whom=whom,
            outcome=outcome,
        )

    async def _lease_of(self, row: InboxRow) -> TurnLease:
        """Return a control row as if it were leased: its record goes where the session stands now."""
        session = await self._rooms.journal.session(row.message.key)
        turn = row.turn or turn_id(row.message)
        return TurnLease(key=row.message.key, turn=turn, epoch=0, rows=(row,), session=session)

    def _command_line(self, lease: TurnLease, reply: CommandReply) -> Line:
        row = lease.rows[0]
        message = row.message
        # A private answer never joins a shared transcript (FORMATS.md, Sends).
        is_private = reply.is_private or message.is_ephemeral
        is_hidden = reply.is_secret or (is_private and message.chat_kind is ChatKind.GROUP)
        text = "" if is_hidden else append_commands(reply.text, reply.choices)
        said = speaker_fields(message) | {"seen": build.format_time(row.accepted_at)}
        return build.command(lease.turn, reply.typed or message.text, text, self._rooms.now(), **said)

    def _command(self, lease: TurnLease, typed: ParsedCommand) -> CommandContext:
        row = lease.rows[0]
        return CommandContext(
            row=row,
            args=typed.args,
            scope=self._rooms.place(row).scope,
            person=self._rooms.person(row),
            turn=lease.turn,
            transcript=lease.session.transcript,
            length=lease.session.next_index,
            language=self._rooms.language(row),
            now=self._rooms.now(),
            house=self._rooms.house,
            commands=self._rooms.router.commands,
        )


def _told(lease: TurnLease, reply: CommandReply) -> tuple[OutboundMessage, ...]:
    answer = build_reply(
        lease, reply.text, OutboundKind.NOTICE, reply.is_private, choices=reply.choices, settles=reply.settles
    )
    return (*answer, *reply.also)


def new_transcript() -> str:
    """Return 16 random base32 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode("ascii").lower()
