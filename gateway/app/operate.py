"""What the operator can ask of an app, whether its services run or not."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version

from channels.console.adapter import ConsoleChannel
from channels.web.adapter import WebChannel
from gateway.app.build import App
from gateway.errors import UserMistake
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey, turn_id
from gateway.operations import Operations
from gateway.ports import Verdict


def operations_of(app: App) -> Operations:
    """Return the operations over *app*; what needs a channel is offered where the channel is."""
    web = next((channel for channel in app.channels.values() if isinstance(channel, WebChannel)), None)
    console = next((channel for channel in app.channels.values() if isinstance(channel, ConsoleChannel)), None)

    @asynccontextmanager
    async def still() -> AsyncIterator[None]:
        async with app.memory_jobs.still(), app.projector.still():
            yield

    async def submit(key: SessionKey, text: str) -> str:
        return await _submit(app, key, text)

    def hearing() -> Mapping[str, bool]:
        return {name: bool(state) for name, state in app.supervisor.states().items()}

    return Operations(
        home=app.home,
        version=version("parlour"),
        started_at=datetime.now(UTC),
        store=app.store,
        sessions=app.sessions,
        channels=hearing,
        still=still,
        submit=submit,
        login=web.issue_code if web else None,
        converse=console.converse if console else None,
        refusals=app.refusals,
    )


async def _submit(app: App, key: SessionKey, text: str) -> str:
    """Put an operator's text in a chat's lane as a job of ours; return the turn it becomes."""
    if key.channel not in app.kinds:
        raise UserMistake(f"there is no channel called {key.channel}; there are: {', '.join(sorted(app.kinds))}")
    message = InboundMessage(
        key=key,
        message_id=f"job:send/{secrets.token_hex(8)}",
        sender=Sender(id=key.chat, name=""),
        text=text,
        sent_at=datetime.now(UTC),
        kind=InboundKind.JOB,
        chat_kind=ChatKind.DIRECT,
    )
    accepted = await app.intake.accept(message, Role.OWNER)
    if accepted.verdict is Verdict.FULL:
        raise UserMistake(f"{key} has too many messages waiting; try again when some are answered")
    return turn_id(message)
