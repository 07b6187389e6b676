"""Memory: transcripts, documents with versions, edits, and background jobs; and its public API for other programs."""

from typing import TYPE_CHECKING, Any

from agent.memory.memory_store import MemoryStore as MemoryStore
from agent.memory.memory_store import Session as Session
from agent.memory.memory_store import SessionManager as SessionManager
from agent.memory.update.notes import MemoryFlusher as MemoryFlusher
from agent.memory.update.notes import SessionMemoryWriter as SessionMemoryWriter

if TYPE_CHECKING:
    from agent.memory.vector_memory import VectorMemoryManager as VectorMemoryManager


def __getattr__(name: str) -> Any:
    """Import `VectorMemoryManager` when it is used: every module of memory imports this one, and few search."""
    if name != "VectorMemoryManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agent.memory.vector_memory import VectorMemoryManager

    return VectorMemoryManager
