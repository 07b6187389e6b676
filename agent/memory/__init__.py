"""What is remembered, by whom, and how it reaches the model. The seeds' public door stands here."""

from agent.memory.door import Session as Session
from agent.memory.door import SessionManager as SessionManager
from agent.memory.store import MemoryStore as MemoryStore
