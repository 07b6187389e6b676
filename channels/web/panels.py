"""HTTP routes of the panels: the lines that are remembered about the visitor, their sources, the reminders, the models.

They only read. The page changes things with the commands that people type, so that rights, order and the audit are
those of the commands.
"""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse

from channels.web.adapter import WebChannel, WebVisitor
from channels.web.slots import SlotsTaken
from gateway.events import SessionKey
from gateway.ports.person_panels import PersonPanels

LONGEST_LINE = 4_000  # characters of a remembered line that is asked about
_FRESH = {"Cache-Control": "no-store"}


async def list_remembered_lines(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the lines that the bot remembers about the visitor."""
    return JSONResponse({"lines": list(await panels.remembered_lines(key))}, headers=_FRESH)


async def show_line_source(channel: WebChannel, visitor: WebVisitor, request: Request) -> JSONResponse:
    """Return where the remembered line `line` comes from, one question of a visitor at a time."""
    line = request.query_params.get("line", "")
    if channel.panels is None:
        return JSONResponse({}, 404)
    if not line or len(line) > LONGEST_LINE:
        return JSONResponse({}, 400)
    try:
        async with channel.searches.hold(visitor.who):
            source = await channel.panels.line_source(SessionKey(channel.name, visitor.who), line)
    except SlotsTaken:
        return JSONResponse({}, 429)
    return JSONResponse({}, 404) if source is None else JSONResponse(asdict(source), headers=_FRESH)


async def list_reminders(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the visitor's reminders, the next one first."""
    return JSONResponse({"reminders": [asdict(each) for each in await panels.reminders(key)]}, headers=_FRESH)


async def list_models(panels: PersonPanels, key: SessionKey) -> JSONResponse:
    """Return the model that answers the visitor, and those that they can choose."""
    return JSONResponse(asdict(panels.models(key)), headers=_FRESH)
