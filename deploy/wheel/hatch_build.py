"""Writes the commit that a wheel is built of into it, for `parlour --version`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the file `commit`, from the variable COMMIT or from git; none where both are missing."""

    PLUGIN_NAME = "custom"
    _folder: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, except to an editable install, whose folder says its commit itself."""
        commit = os.environ.get("COMMIT") or _head(self.root)
        if version == "editable" or not commit:
            return
        self._folder = Path(tempfile.mkdtemp())
        file = self._folder / "commit"
        file.write_text(f"{commit}\n", "ascii")
        build_data["force_include"][str(file)] = "parlour/packages/commit"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what `initialize` wrote."""
        if self._folder is not None:
            shutil.rmtree(self._folder)


def _head(root: str) -> str:
    try:
        command = ("git", "-C", root, "rev-parse", "--short=8", "HEAD")
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - ours
    except (OSError, subprocess.CalledProcessError):
        return ""
