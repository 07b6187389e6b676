"""A settings file without its secrets, for a backup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway.errors import SettingsError
from gateway.settings import setting_names
from gateway.settings.resolve import normalize_names
from gateway.settings.setting_types import LEFT_OUT
from gateway.settings.sources import SettingLeaf, read_file, read_text


def redact_settings(file: Path) -> tuple[str | None, list[str]]:
    """Return the text with each secret replaced, and the names replaced; None if a secret cannot be located."""
    try:
        secrets = [leaf for leaf in read_file(file) if _holds_secret(normalize_names(leaf)) and leaf.value]
        text = file.read_text("utf-8")
        for leaf in sorted(secrets, key=lambda leaf: len(str(leaf.value)), reverse=True):
            text = text.replace(str(leaf.value), LEFT_OUT)
    except (SettingsError, OSError, ValueError):
        return None, []
    # Written with escapes or over several lines, a secret is not found as text: then nothing of the file goes out.
    if any(str(leaf.value) not in (LEFT_OUT, "") for leaf in _again(text, file, {leaf.path for leaf in secrets})):
        return None, []
    return text, [".".join(leaf.path) for leaf in secrets]


def _holds_secret(leaf: SettingLeaf) -> bool:
    """Return True if the leaf's path is a secret's. Unknown names count if they contain a word like "token"."""
    sounds_secret = any(word in leaf.path[-1] for word in ("token", "secret", "password", "api_key", "webhook"))
    known = set(setting_names.known_paths({}))
    path = ".".join(leaf.path)
    if path in known:
        return path in set(_secret_paths())
    if leaf.path[-1].endswith("_file"):
        return False  # names a file; the secret is elsewhere
    return sounds_secret


def _secret_paths() -> Iterator[str]:
    """Yield the dotted names of the tree's own secrets."""
    for path in setting_names.known_paths({}):
        if path.endswith("_file"):
            yield path.removesuffix("_file")


def _again(text: str, file: Path, paths: set[tuple[str, ...]]) -> list[SettingLeaf]:
    try:
        return [leaf for leaf in read_text(file, text) if leaf.path in paths]
    except SettingsError:
        return [SettingLeaf((), "unreadable", "")]
