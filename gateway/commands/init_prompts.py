"""Prompts of `parlour init`: at a terminal, or unattended, with answers from options and environment."""

from __future__ import annotations

import getpass
import warnings
from collections.abc import Sequence
from typing import Protocol

import typer
from rich.console import Console
from rich.markup import escape

from gateway.errors import UserError
from gateway.ports.findings import Finding, FindingLevel
from gateway.text.text_units import strip_control_characters

_MARKS = {FindingLevel.OK: "[green]✓[/]", FindingLevel.WARN: "[yellow]![/]", FindingLevel.FAIL: "[red]✗[/]"}
AGAIN, KEEP, SKIP = "again", "keep", "skip"
_LOOKS = {"title": "bold", "hint": "dim", "wrong": "red"}


class InitPrompter(Protocol):
    """Asks for settings."""

    is_person: bool

    def say(self, text: str, *, look: str = "") -> None:
        """Show one line; *look* is title, hint, wrong, result or nothing."""

    def show(self, finding: Finding) -> None:
        """Show the result of a real call."""

    def ask(self, text: str, *, default: str = "", is_secret: bool = False, variable: str = "") -> str:
        """Return the answer, *default* when it is empty. Secrets are not shown, nor is their default.

        Unattended, a missing answer raises UserError that names *variable*.
        """

    def choose(self, text: str, options: Sequence[str]) -> str:
        """Return one of *options*; the first where nothing is typed."""

    def confirm(self, text: str, *, default: bool) -> bool:
        """Return yes or no."""


class TerminalPrompter:
    """A person at a terminal. Ctrl-C and Ctrl-D end the command as typer's Abort."""

    is_person = True

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)

    def say(self, text: str, *, look: str = "") -> None:
        """See `InitPrompter`."""
        if look == "title":
            self._console.print()
        self._console.print(escape(clean(text)), style=_LOOKS.get(look, ""))

    def show(self, finding: Finding) -> None:
        """See `InitPrompter`."""
        self._console.print(f"  {_MARKS[finding.level]} {escape(clean(finding.text))}")

    def ask(self, text: str, *, default: str = "", is_secret: bool = False, variable: str = "") -> str:  # noqa: ARG002 - the port's signature
        """See `InitPrompter`."""
        hint = f" [{'kept' if is_secret else clean(default)}]" if default else ""
        shown = f"  {clean(text)}{hint}"
        answer = _hidden(f"{shown}: ") if is_secret else typer.prompt(shown, default="", show_default=False)
        return str(answer).strip() or default

    def choose(self, text: str, options: Sequence[str]) -> str:
        """See `InitPrompter`."""
        while True:
            answer = str(typer.prompt(f"  {text} ({', '.join(options)})", default=options[0])).strip().lower()
            found = [option for option in options if option.startswith(answer)]
            if len(found) == 1:
                return found[0]
            self.say(f"  one of {', '.join(options)}", look="wrong")

    def confirm(self, text: str, *, default: bool) -> bool:
        """See `InitPrompter`."""
        return typer.confirm(clean(text), default=default)


def _hidden(prompt: str) -> str:
    """Read a line that is not echoed.

    typer's own hidden prompt shows its question first and turns the echo off only then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(prompt)
        except EOFError:
            raise typer.Abort from None
        except getpass.GetPassWarning:
            raise UserError(
                "this terminal shows what you type; put the secret in a file, set its path, as in"
                " PARLOUR_LLM__API_KEY_FILE=path, and run `parlour init` again"
            ) from None


class UnattendedPrompter:
    """Prompter of a script: answers are options, environment and settings. A missing answer is an error."""

    is_person = False

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps

    def say(self, text: str, *, look: str = "") -> None:
        """Print results only, because no user follows the steps."""
        if look in ("wrong", "result"):
            typer.echo(clean(text).strip(), err=look == "wrong")

    def show(self, finding: Finding) -> None:
        """See `InitPrompter`."""
        typer.echo(f"{finding.level.value:7}  {clean(finding.text)}")

    def ask(self, text: str, *, default: str = "", is_secret: bool = False, variable: str = "") -> str:  # noqa: ARG002 - the port's signature
        """See `InitPrompter`."""
        if not default and variable:
            raise UserError(f"{variable} is required; set it, or run `parlour init` in a terminal")
        return default

    def choose(self, text: str, options: Sequence[str]) -> str:  # noqa: ARG002 - the port's signature
        """Return KEEP with --keep; otherwise raise UserError."""
        if self._keeps and "keep" in options:
            return "keep"
        raise UserError("nothing was saved in this step; fix the error, or use --keep to save it unverified")

    def confirm(self, text: str, *, default: bool) -> bool:  # noqa: ARG002 - the port's signature
        """See `InitPrompter`."""
        return default


def clean(text: str) -> str:
    """Return *text* as one line that a terminal only shows."""
    return " ".join(strip_control_characters(text).splitlines()).replace("\t", " ")


def choose_next(prompter: InitPrompter, *, may_keep: bool) -> str:
    """Return the next action for an invalid answer: AGAIN, SKIP or, if *may_keep*, KEEP."""
    return prompter.choose("Correct it, or", (AGAIN, KEEP, SKIP) if may_keep else (AGAIN, SKIP))
