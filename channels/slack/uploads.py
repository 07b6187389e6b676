"""Files out, in Slack's three steps; the file's id is stored before the step that shows it, and asked for when unsure.

files.getUploadURLExternal names a file, a POST brings its bytes, files.completeUploadExternal shows it in the chat.
Only the last step is seen by people, so a kill before it means that nothing stands there.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.codec import escape, render_markup, shared_at
from channels.slack.sent_lookup import find_shared_file
from gateway.errors import FileUnavailable, OutcomeUnknown, RetryLater, SendFailed, SendRefused
from gateway.events import Attachment, MessagePart
from gateway.ports import BlobStore, ChannelState
from gateway.text import render_plain

log = structlog.get_logger(__name__)

LIMIT = 100_000_000  # bytes of one file
SCOPE = "files:write"
_ADDRESS = re.compile(r"https?://[^\s<>`|]+")
_NOTE = "uploads"
_KEPT = 300  # parts, the newest
_SETTLES = timedelta(minutes=1)  # Slack shows a file a moment after it said yes
_LOOK_AGAIN = timedelta(seconds=2)


class SlackUploads:
    """Sends parts that are files, and says whether they stand."""

    def __init__(self, api: SlackApi, blobs: BlobStore, state: ChannelState) -> None:
        self._api = api
        self._blobs = blobs
        self._state = state
        self._known: OrderedDict[str, tuple[str, str]] | None = None  # part -> file id, and when it was to be shown
        self._writing = asyncio.Lock()

    async def send(self, part: MessagePart, file: Attachment, *, mark: str) -> str:
        """Show *file*, with *mark* above it, in the part's chat and return its id; raise one of SendFailed."""
        data = await self._bytes(part, file)
        ticket = await self._api.ask("files.getUploadURLExternal", filename=file.name, length=str(len(data)))
        ident = str(ticket["file_id"])
        await self._api.upload(str(ticket["upload_url"]), data)
        await self._note(part.id, ident)
        await self._api.post("files.completeUploadExternal", **_completion(part, file, ident, mark))
        return ident

    async def find(self, part: MessagePart, scopes: frozenset[str]) -> str:
        """Return the id of the file that *part* stands as; "" = it certainly does not. Raises as `ledger.find`."""
        ident, at = (await self._load()).get(part.id, ("", ""))
        if not ident:
            return ""  # the step that shows it was never taken
        chat, thread = part.key.parent.chat, part.key.thread
        try:
            answer = await self._api.get("files.info", file=ident)
        except SlackRefusal as error:
            if error.code in ("file_not_found", "file_deleted"):
                return ""
            return await find_shared_file(self._api, part, ident, scopes)
        except RetryLater:
            raise
        except SendFailed as error:
            raise OutcomeUnknown(f"files.info: {error}") from error
        file: Mapping[str, Any] = answer.get("file") or {}
        if shared_at(file, chat, thread):
            return ident
        if datetime.now(UTC) - datetime.fromisoformat(at) < _SETTLES:
            raise RetryLater(_LOOK_AGAIN, "Slack has the file and does not say yet where it stands")
        raise OutcomeUnknown("Slack has the file and does not say where it stands")

    async def _bytes(self, part: MessagePart, file: Attachment) -> bytes:
        data = await self._blobs.get(file.blob) if file.blob else part.plain.encode("utf-8", "replace")
        if data is None:
            raise FileUnavailable("its bytes are lost")
        if not data:
            raise SendRefused("Slack takes no empty files")
        if len(data) > LIMIT:
            raise SendRefused(f"larger than {LIMIT // 1_000_000} MB")
        return data

    async def _note(self, part: str, ident: str) -> None:
        async with self._writing:
            known = OrderedDict(await self._load())
            known.pop(part, None)
            known[part] = (ident, datetime.now(UTC).isoformat())
            while len(known) > _KEPT:
                known.popitem(last=False)
            await self._state.save(_NOTE, json.dumps(known))
            self._known = known

    async def _load(self) -> OrderedDict[str, tuple[str, str]]:
        if self._known is None:
            kept = json.loads(await self._state.load(_NOTE) or "{}")
            self._known = OrderedDict((part, (ident, at)) for part, (ident, at) in kept.items())
        return self._known


def _completion(part: MessagePart, file: Attachment, ident: str, mark: str) -> dict[str, Any]:
    body: dict[str, Any] = {"channel_id": part.key.parent.chat, "files": [{"id": ident, "title": file.name}]}
    if part.key.thread:
        body["thread_ts"] = part.key.thread
    lines = [f"_{mark}_"] if mark else []
    if comment := "\n".join([*lines, _caption(file.caption)] if file.caption else lines):
        body["initial_comment"] = comment
    return body


def _caption(text: str) -> str:
    """Return *text* as Slack shows it. Here nobody can switch previews off, so that an address is shown as code."""
    return (
        _ADDRESS.sub(lambda found: f"`{found[0]}`", escape(render_plain(text)))
        if _ADDRESS.search(text)
        else render_markup(text)
    )
