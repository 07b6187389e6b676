"""`parlour deploy`: the units, compose files and monitoring files, which a wheel carries too."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gateway.errors import UserError

_ROOT = Path(__file__).parents[2]
_PROGRAM = "/opt/parlour/.venv/bin/parlour"  # in the units


def print_files(kind: str, name: str) -> None:
    """Print the file *name* of *kind*, or each with its name in a comment. Raises UserError for an unknown name."""
    files = _files(kind)
    if name and name not in files:
        raise UserError(f"no file of {kind} is called {name!r}; there are: {', '.join(files)}")
    for each, path in files.items():
        if name in ("", each):
            text = path.read_text("utf-8")
            if kind == "systemd":  # the command that runs now is the one that the units start
                text = text.replace(_PROGRAM, str(Path(sys.argv[0]).absolute()))
            typer.echo(f"{'' if name else f'# ---- {each}{chr(10)}'}{text}", nl=False)


def _files(kind: str) -> dict[str, Path]:
    if kind != "compose":
        found = sorted((_ROOT / "deploy" / kind).iterdir())
    elif (folder := _ROOT / "deploy" / "compose").is_dir():  # a wheel
        found = sorted(folder.iterdir())
    else:
        found = [_ROOT / "docker-compose.yml", *sorted((_ROOT / "deploy").glob("compose.*.yml"))]
    return {path.name: path for path in found if path.is_file()}
