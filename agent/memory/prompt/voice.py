"""The voice in force: a scope's own SOUL.md, else the installation's, else the one Parlour comes with."""

from __future__ import annotations

from agent.memory.prompt.prompt_snapshot import DEFAULT_VOICE
from gateway.ports import DocumentStore

SOUL = "SOUL.md"


async def effective_persona(documents: DocumentStore, scope: str) -> str:
    """Return what a change of the scope's SOUL.md changes: a first change begins with what was in force."""
    for place in dict.fromkeys((scope, "")):
        text = (await documents.read(place, SOUL)).text
        if text.strip():
            return text
    return f"{DEFAULT_VOICE}\n"
