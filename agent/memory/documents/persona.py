"""The effective persona: a scope's own SOUL.md, else the installation's, else the built-in text."""

from __future__ import annotations

from gateway.ports import DocumentStore

SOUL = "SOUL.md"
DEFAULT_PERSONA = """You are a helpful assistant. You are friendly, precise and brief, and you answer in the language \
you are spoken to. You say so when you do not know something, and you never claim to have done what you have not \
done."""


async def effective_persona(documents: DocumentStore, scope: str) -> str:
    """Return the text that a change of the scope's SOUL.md starts from."""
    for place in dict.fromkeys((scope, "")):
        text = (await documents.read(place, SOUL)).text
        if text.strip():
            return text
    return f"{DEFAULT_PERSONA}\n"
