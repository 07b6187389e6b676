"""Memory: transcripts, documents with versions, edits, and background jobs; and its public API for other programs."""

from agent.memory.memory_store import MemoryStore as MemoryStore
from agent.memory.session_manager import Session as Session
from agent.memory.session_manager import SessionManager as SessionManager
