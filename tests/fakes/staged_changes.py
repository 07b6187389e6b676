"""Something that waits for a yes, put where a consolidation or Dream would put it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from agent.base.transcript_lines import utc_now
from agent.memory.editing.staged_changes import StagedChange
from agent.memory.editing.text_operations import AddLines, RemoveLines
from gateway.ports.journal import Job
from tests.fakes.documents import stored_text
from tests.fakes.inprocess_gateway import InProcessGateway

FACT = "Ann keeps bees"


async def staged(
    parlour: InProcessGateway,
    scope: str,
    session: str,
    *,
    name: str = "eaaaaaaaaaaaaaaaa",
    fact: str = FACT,
    age: timedelta = timedelta(0),
    asks: bool = True,
) -> None:
    """Have *fact* wait for a yes in *scope*, and somebody in *session* asked about it."""
    await put_aside(parlour, scope, session, name=name, fact=fact, at=utc_now() - age)
    if asks:
        await look(parlour, scope, name)


async def put_aside(parlour: InProcessGateway, scope: str, session: str, *, name: str, fact: str, at: datetime) -> None:
    """Store what waits, and nothing else."""
    change = StagedChange(name=name, why="untrusted", at=at, operations=(AddLines(f"- {fact}"),), session=session)
    await parlour.app.commands.staging.stage(scope, change)


async def removal(
    parlour: InProcessGateway, scope: str, session: str, *, line: str, person: str, name: str = "ebbbbbbbbbbbbbbbb"
) -> None:
    """Have a removal wait that came of words that *person* took back."""
    removed = (RemoveLines(line),)
    change = StagedChange(name=name, why="deleted", at=utc_now(), operations=removed, session=session, person=person)
    await parlour.app.commands.staging.stage(scope, change)


async def stored_changes(parlour: InProcessGateway, scope: str) -> list[Mapping[str, Any]]:
    """Return what is stored of all that waits in *scope*."""
    return list(await parlour.app.commands.staging.records(scope))


async def look(parlour: InProcessGateway, scope: str, name: str) -> None:
    """Run a job of memory in *scope*: one that has nothing to do, and after which is asked."""
    job = Job(id=f"remember:{name}", kind="remember", scope=scope, payload={"fact": ""}, due_at=utc_now())
    await parlour.app.store.jobs.put(job)
    while await parlour.app.store.jobs.pending_in(scope):  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0.005)


def memory(parlour: InProcessGateway, scope: str) -> str:
    """Return what is remembered."""
    return stored_text(parlour.home, scope)


async def scope_in(parlour: InProcessGateway, session: str) -> str:
    """Return the scope of a session in which somebody was answered."""
    await parlour.idle()
    return next(row.scope for row in await parlour.app.store.records.sessions() if str(row.key) == session)


async def erase(ask: Callable[..., Awaitable[str]], chat: str, command: str, **said: Any) -> str:
    """Send */forget …* to a chat, press Yes, and return what the press was answered."""
    question = await ask(chat, command, **said)
    found = re.search(r"/memory approve (f[a-z2-7]{16})", question)
    assert found, question
    return await ask(chat, found[0], **said)


def change(text: str) -> str:
    """Return the first change that an answer names."""
    found = re.search(r"`([0-9a-f]{8})`", text)
    assert found, text
    return found[1]
