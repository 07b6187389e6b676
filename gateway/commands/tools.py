"""`parlour tools`: tools that are on and off, and the calls that wait for approval."""

from __future__ import annotations

from gateway.commands.control_client import AsJson, call_operation, print_lines
from gateway.control import Line


def list_tools(as_json: AsJson = False) -> None:
    """List the tools that are on and off, with the reasons, and the calls that wait for approval."""
    lines = call_operation("tools")
    width = max((len(line["tool"]) for line in lines if "tool" in line), default=0)
    print_lines(lines, as_json, lambda line: _row(line, width))


def _row(line: Line, width: int) -> str:
    if "questions" in line:
        count = line["questions"]
        return f"{count} {'question waits' if count == 1 else 'questions wait'} for approval in {line['chat']}"
    name = f"{line['state']:3}  {line['tool']:{width}}"
    if line["state"] == "off":
        return f"{name}  {line['reason']}"
    off_in = f"off in {', '.join(line['off_in'])}" if line["off_in"] else ""
    return "  ".join(filter(None, (name, f"{line['kind']:7}", line["package"], line["rights"], off_in)))
