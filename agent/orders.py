"""Turns that are commands: in their lane, or passing it."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace

from agent.commands import CommandContext, Reply, Typed
from agent.commands.port import decider_of
from agent.context import speaker
from agent.draft import Draft
from agent.memory.files import lines as build
from agent.memory.waiting.asking import question
from agent.pool import Running
from agent.rooms import Rooms, to_chat
from gateway.events import ChatKind, OutboundKind, OutboundMessage, Role, reference, turn_id
from gateway.ports import AuditLine, Commit, EndState, InboxRow, Lease, Line
from gateway.text import with_commands
from gateway.words import say
from gateway.words.failures import BY_NAME, tell


class Orders:
    """Runs commands to their commit."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def obey(self, running: Running, typed: Typed) -> None:
        """Run a command that waited in its lane."""
        lease = running.lease
        conversation, place = await self._rooms.open(lease)
        reply = await self._rooms.router.run(typed, self._command(lease, typed))
        audit = self._audit(lease, reply.audit, reply.outcome, reply.whom)
        draft = Draft(lease, place.scope)
        now = self._rooms.now()
        for row in lease.notes:
            draft.add(self._rooms.context.note(draft, row, place.zone, conversation.speaker_names))
        draft.add(self._command_line(lease, reply))
        record = draft.record(EndState.ANSWERED, now)
        if reply.new_transcript:
            record = replace(record, new_transcript=new_transcript())
        told = _told(lease, reply)
        await self._rooms.commit(running, conversation, record, told, draft, reply.jobs, audit)
        if reply.new_transcript:
            self._rooms.conversations.forget(lease.key)

    async def ask(self, running: Running, scope: str) -> None:
        """Ask about what waits in *scope* and arose here; nothing is said when it was asked or decided meanwhile."""
        lease = running.lease
        house, is_shared = self._rooms.house, lease.rows[0].message.chat_kind is ChatKind.GROUP
        conversation, place = await self._rooms.open(lease)
        # A session that has another scope by now (an account was unlinked) must not hear of this one's.
        is_here = scope == place.scope == lease.session.scope
        found = await house.staging.waiting(scope) if is_here else []
        # What an attempt of this very turn noted before a crash was not asked yet.
        wanted = [each for each in found if each.session == str(lease.key) and each.asked in ("", lease.turn)]
        draft = Draft(lease, place.scope)
        for row in lease.notes:
            draft.add(self._rooms.context.note(draft, row, place.zone, conversation.speaker_names))
        told: tuple[OutboundMessage, ...] = ()
        if wanted:
            text, choices = question(wanted, self._rooms.language(lease.rows[0]), is_shared=is_shared)
            await house.staging.note_asked(scope, [each.name for each in wanted], lease.turn)
            draft.add(build.notice(lease.turn, with_commands(text, choices), self._rooms.now()))
            told = to_chat(lease, text, OutboundKind.NOTICE, choices=choices)
        record = draft.record(EndState.ANSWERED, self._rooms.now())
        await self._rooms.commit(running, conversation, record, told, draft)

    async def control(self, row: InboxRow, role: Role | None) -> None:
        """Run a command that does not wait in its lane, by what its sender may decide now; None = not even speak."""
        typed = self._rooms.router.typed(row.message)
        lease = await self._lease_of(replace(row, role=role or row.role))
        reply = Reply(text=say("commands.button_gone", self._rooms.language(row)), is_private=True)
        if role is None:
            reply = Reply(text=say("commands.revoked", self._rooms.language(row)), is_private=True)
        elif typed is not None:
            reply = await self._rooms.router.run(typed, self._command(lease, typed))
        audit = (
            self.unfinished(lease, EndState.REFUSED)
            if role is None
            else self._audit(lease, reply.audit, reply.outcome, reply.whom)
        )
        draft = Draft(lease, self._rooms.place(row).scope)
        draft.add(self._command_line(lease, reply))
        record = draft.record(EndState.REFUSED if role is None else EndState.ANSWERED, self._rooms.now())
        told = _told(lease, reply)
        await self._rooms.journal.settle(row, Commit(record=record, outbound=told, jobs=reply.jobs, audit=audit))

    async def bury_control(self, row: InboxRow) -> None:
        """Settle a control command that failed and tell its sender."""
        lease = await self._lease_of(row)
        line = tell(BY_NAME["bug"], reference(lease.turn), self._rooms.language(row))
        draft = Draft(lease, self._rooms.place(row).scope)
        draft.add(self._command_line(lease, Reply(text=line)))
        record = draft.record(EndState.DEAD, self._rooms.now(), failure="bug")
        self._rooms.meter.count("turn_failures", failure="bug")
        told = to_chat(lease, line, OutboundKind.NOTICE)
        audit = self.unfinished(lease, EndState.DEAD)
        await self._rooms.journal.settle(row, Commit(record=record, outbound=told, audit=audit))

    def unfinished(self, lease: Lease, outcome: EndState) -> AuditLine | None:
        """Return the audit line of a turn that ends in another way than its command's; None where none decides.

        What it decided may have been done before its end, so that the line must not be missing.
        """
        typed = self._rooms.router.typed(lease.rows[0].message)
        label = self._rooms.router.audited(typed, self._command(lease, typed)) if typed is not None else ""
        return self._audit(lease, label, outcome.value)

    def _audit(self, lease: Lease, what: str, outcome: str, whom: str = "") -> AuditLine | None:
        if not what:
            return None
        return AuditLine(
            id=lease.turn,
            at=self._rooms.now(),
            by=decider_of(lease.rows[0].message),
            where=str(lease.key),
            what=what,
            whom=whom,
            outcome=outcome,
        )

    async def _lease_of(self, row: InboxRow) -> Lease:
        """Return a control row as if it were leased: its record goes where the session stands now."""
        session = await self._rooms.journal.session(row.message.key)
        turn = row.turn or turn_id(row.message)
        return Lease(key=row.message.key, turn=turn, epoch=0, rows=(row,), session=session)

    def _command_line(self, lease: Lease, reply: Reply) -> Line:
        row = lease.rows[0]
        message = row.message
        # A private answer never joins a shared transcript (FORMATS.md, Sends).
        is_private = reply.is_private or message.is_ephemeral
        is_hidden = reply.is_secret or (is_private and message.chat_kind is ChatKind.GROUP)
        text = "" if is_hidden else with_commands(reply.text, reply.choices)
        said = speaker(message) | {"seen": build.stamp(row.accepted_at)}
        return build.command(lease.turn, reply.typed or message.text, text, self._rooms.now(), **said)

    def _command(self, lease: Lease, typed: Typed) -> CommandContext:
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


def _told(lease: Lease, reply: Reply) -> tuple[OutboundMessage, ...]:
    answer = to_chat(
        lease, reply.text, OutboundKind.NOTICE, reply.is_private, choices=reply.choices, settles=reply.settles
    )
    return (*answer, *reply.also)


def new_transcript() -> str:
    """Return 16 random base32 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode("ascii").lower()
