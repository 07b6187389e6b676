"""Skills of an operator, for tests."""

from __future__ import annotations

from pathlib import Path


def skill_text(name: str, description: str = "Writes invoices.") -> str:
    """Return a SKILL.md."""
    return f"---\nname: {name}\ndescription: {description}\n---\n# Work\n\nDo it well.\n"


def write_skill(folder: Path, name: str, data: bytes | None = None) -> Path:
    """Write a skill of *name* into *folder*, with *data* as its SKILL.md; return its own folder."""
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    (own / "SKILL.md").write_bytes(skill_text(name).encode() if data is None else data)
    return own
