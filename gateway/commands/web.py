"""`parlour web login|logins|logout` and `parlour open`: logins to the page."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.control_client import AsJson, call_operation, print_json, print_lines
from gateway.control import Line
from gateway.errors import UserError

As = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Log in as a user with this name, who is not an owner.")
]

app = typer.Typer(help="The chat page.", no_args_is_help=True)


@app.command()
def login(name: As = None, as_json: AsJson = False) -> None:
    """Print a login code for the page. It works once, for ten minutes; without --as it is the owner's."""
    line = _issue_code(name)
    if as_json:
        print_json([line])
        return
    typer.echo(line["code"])
    if line["link"]:
        typer.echo(line["link"])


def open_page(
    console: Annotated[bool, typer.Option("--console", help="The console instead of the chat.")] = False,
    name: As = None,
) -> None:
    """Print a link that logs a browser in to the page. It works once, for ten minutes."""
    line, path = _issue_code(name), "console" if console else ""
    # A fragment stays in the browser: no log of a server or proxy contains it.
    typer.echo(f"{line['page']}{path}#code={line['code']}")


def _issue_code(name: str | None) -> Line:
    if name == "":  # a variable that a script forgot to set must not end in the owner's code
        raise UserError("--as needs a name, such as ann; without --as, the code is for the owner")
    (line,) = call_operation("web login", {"as": name or ""})
    return line


@app.command()
def logins(as_json: AsJson = False) -> None:
    """List the users who are logged in."""
    empty = "no user is logged in; `parlour web login --as NAME` prints a code for one"
    print_lines(call_operation("web logins"), as_json, _login_row, empty=empty)


@app.command()
def logout(
    name: Annotated[str, typer.Argument(help="Its name in `parlour web logins`.")], as_json: AsJson = False
) -> None:
    """End every login of a user, open pages included."""

    def describe(line: Line) -> str:
        return f"{line['who']} is logged out ({_browsers(line['browsers'])})"

    print_lines(call_operation("web logout", {"who": name}), as_json, describe)


def _login_row(line: Line) -> str:
    return f"{line['who']:24} {_browsers(line['browsers'])}, until {str(line['until'])[:16].replace('T', ' ')} UTC"


def _browsers(count: int) -> str:
    return "1 browser" if count == 1 else f"{count} browsers"
