"""The start of every `parlour` command, and the lines for its errors."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from gateway.errors import ParlourError, UserError
from gateway.installation import with_operator_commands


def main() -> NoReturn:
    """Run the command line. A UserError is one line on standard error and its exit code, which is 2 for most."""
    try:
        _run_command()
    except UserError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except ParlourError as error:
        _print_error(str(error) or type(error).__name__)
        sys.exit(1)
    except OSError as error:
        from gateway.home import full_disk, is_full_disk

        if not is_full_disk(error):
            raise
        _print_error(full_disk(error))
        sys.exit(1)
    sys.exit(0)


def _run_command() -> None:
    if sys.argv[1:] != ["run"]:
        from gateway.cli import app

        app()
        return
    # A gateway runs for months and reads no other argument: it does without typer and the other commands, 3 MB.
    os.umask(0o077)
    from gateway.commands.run import run_gateway

    run_gateway()


def _print_error(text: str) -> None:
    print(f"parlour: {' '.join(with_operator_commands(text).split())}", file=sys.stderr)
