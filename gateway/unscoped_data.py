"""Erasure of data that channels keep outside scopes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import structlog

from gateway.durable_files import sync_folder
from gateway.ports.memory import Meant
from gateway.quarantine import Quarantine

log = structlog.get_logger(__name__)


class HomeUnscopedData:
    """Data of a home outside scopes: its quarantine, and ``uploads/<block>/<token>``."""

    def __init__(self, uploads: Path, quarantine: Quarantine) -> None:
        self._uploads = uploads
        self._quarantine = quarantine

    async def forget(self, is_meant: Meant, *, tokens: Collection[str] = ()) -> int:
        """Blank matching events and remove matching files, those named in *tokens* included; return their number."""
        blanked = await self._quarantine.blank(is_meant)
        return blanked + await asyncio.to_thread(self._remove, is_meant, frozenset(tokens))

    def _remove(self, is_meant: Meant, tokens: frozenset[str]) -> int:
        removed = 0
        for block in sorted(self._uploads.glob("*/")):
            before = removed
            for file in sorted(block.iterdir()):
                if file.name in tokens or (file.is_file() and is_meant(block.name, _read(file))):
                    file.unlink(missing_ok=True)
                    removed += 1
            if removed > before:
                sync_folder(block)
        return removed


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # removed by retention since the listing
        return b""
