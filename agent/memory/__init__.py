"""What is remembered, by whom, and how it reaches the model. The seeds' public door stands here."""

from agent.memory.memory_store import MemoryStore as MemoryStore
from agent.memory.session_manager import Session as Session
from agent.memory.session_manager import SessionManager as SessionManager
