"""Commands that need no gateway: they look at the home, or put one back."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import typer

from gateway.doctor import Level, examine
from gateway.restore import restore
from gateway.settings import check_settings, home_of


def look(*, as_json: bool) -> int:
    """Print every finding; return 2 when one of them fails, else 0."""
    findings = list(examine(check_settings(os.environ), os.environ))
    for finding in findings:
        if as_json:
            typer.echo(json.dumps({"level": finding.level, "name": finding.name, "text": finding.text}))
        else:
            typer.echo(f"{finding.level:4}  {finding.name}: {finding.text}")
    counted = Counter(finding.level for finding in findings)
    if not as_json:
        typer.echo(f"{counted[Level.FAIL]} to mend, {counted[Level.WARN]} to consider")
    return 2 if counted[Level.FAIL] else 0


def put_back(file: Path, *, force: bool) -> None:
    """Restore a backup into the home and say what is missing in it."""
    home = home_of(os.environ)
    count = restore(file.absolute(), home, force=force)
    typer.echo(f"{count} files restored into {home}; secrets are in no backup: put them back, then `parlour doctor`")
