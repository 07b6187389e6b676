"""Files in and out of Slack.

Downloads come from Slack's own hosts only, with the token that no other host may see.

An upload takes three steps: files.getUploadURLExternal names a file, a POST transfers it, files.completeUploadExternal
shares it in the chat. Only the last step is visible, and the file id is stored before it: after a kill before that
step nothing was shared.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import aiohttp
from cachetools import FIFOCache

from channels.kit.bodies import load_file
from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.content import download_url, is_file_id, shared_at
from channels.slack.outbound import find_shared_file
from channels.slack.render import escape, render_markup
from gateway.errors import FileUnavailable, OutcomeUnknown, RetryLater, SendFailed
from gateway.events import Attachment, MessagePart
from gateway.text import render_plain

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore
    from gateway.store.records import SqlChannelState


UPLOAD_LIMIT = 100_000_000  # bytes of one file
UPLOAD_SCOPE = "files:write"
_CHUNK = 64 * 1024
_REDIRECTS = 3
_MOVED = frozenset({301, 302, 303, 307, 308})
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=20)
_NO_SCOPE = "Slack does not hand files to this app: it lacks the scope files:read"
_GONE = "gone from Slack"
_ADDRESS = re.compile(r"https?://[^\s<>`|]+")
_NOTE = "uploads"  # the note that holds part -> file id and time, as JSON
_NOTED_PARTS = 300  # the newest
_SHARED_WITHIN = timedelta(minutes=1)  # Slack reports a file as shared a moment after the upload
_RETRY_DELAY = timedelta(seconds=2)


class SlackFiles:
    """Downloads attachments, uploads parts that are files, and finds out whether they were shared."""

    def __init__(self, api: SlackApi, base_url: str, blobs: AttachmentStore, state: SqlChannelState) -> None:
        self._api = api
        self._base = _origin(base_url)
        self._blobs = blobs
        self._state = state
        self._uploads: FIFOCache[str, tuple[str, str]] | None = None  # part -> file id, time of the upload

    # -- in ------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file in chunks; see `SupportsFiles`."""
        url = await self._fetch_url(attachment.url) if is_file_id(attachment.url) else attachment.url
        for _ in range(_REDIRECTS + 1):
            self._check(url)
            try:
                async with self._api.open(url, timeout=_TIMEOUT) as response:
                    if response.status in _MOVED:
                        url = _redirected(url, response.headers.get("Location", ""))
                        continue
                    _check_response(response)
                    async for chunk in response.content.iter_chunked(_CHUNK):
                        yield chunk
                    return
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise FileUnavailable("it could not be downloaded from Slack") from error
        raise FileUnavailable("Slack sends us in circles for it")

    async def _fetch_url(self, file_id: str) -> str:
        """Return the address of a file whose message does not contain it (file_access: check_file_info)."""
        try:
            answer = await self._api.get("files.info", file=file_id)
        except SlackRefusal as error:
            is_scope = error.code == "missing_scope"
            raise FileUnavailable(_NO_SCOPE if is_scope else _GONE) from error
        except SendFailed as error:
            raise FileUnavailable("Slack did not say where it is") from error
        url = download_url({**(answer.get("file") or {}), "file_access": ""})
        if not url:
            raise FileUnavailable(_GONE)
        return url

    def _check(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            origin = _origin(url)
        except ValueError:
            raise FileUnavailable("its address cannot be read") from None
        host = origin[1]
        is_slack = origin[0] == "https" and origin[2] == 443 and (host == "slack.com" or host.endswith(".slack.com"))
        if parts.username is not None or not (is_slack or origin == self._base):
            raise FileUnavailable("it is kept outside of Slack")

    # -- out -----------------------------------------------------------------------------------

    async def send(self, part: MessagePart, file: Attachment, *, mark: str) -> str:
        """Share *file*, with *mark* above it, in the part's chat and return its id; raise SendFailed."""
        data = await load_file(part, self._blobs, limit=UPLOAD_LIMIT)
        ticket = await self._api.ask("files.getUploadURLExternal", filename=file.name, length=str(len(data)))
        file_id = str(ticket["file_id"])
        await self._api.upload(str(ticket["upload_url"]), data)
        uploads, upload = await self._load(), (file_id, datetime.now(UTC).isoformat())
        await self._state.save(_NOTE, json.dumps({**uploads, part.id: upload}))
        uploads[part.id] = upload
        await self._api.post("files.completeUploadExternal", **_completion(part, file, file_id, mark))
        return file_id

    async def find(self, part: MessagePart, scopes: frozenset[str]) -> str:
        """Return the id of the file that *part* was shared as, "" if it was not; raises as `find_sent_part`."""
        file_id, uploaded_at = (await self._load()).get(part.id, ("", ""))
        if not file_id:
            return ""  # the step that shares it was never taken
        try:
            answer = await self._api.get("files.info", file=file_id)
        except SlackRefusal as error:
            if error.code in ("file_not_found", "file_deleted"):
                return ""
            return await find_shared_file(self._api, part, file_id, scopes)
        except RetryLater:
            raise
        except SendFailed as error:
            raise OutcomeUnknown(f"files.info: {error}") from error
        file: Mapping[str, Any] = answer.get("file") or {}
        if shared_at(file, part.key.parent.chat, part.key.thread):
            return file_id
        if datetime.now(UTC) - datetime.fromisoformat(uploaded_at) < _SHARED_WITHIN:
            raise RetryLater(_RETRY_DELAY, "Slack has the file and does not say yet where it stands")
        raise OutcomeUnknown("Slack has the file and does not say where it stands")

    async def _load(self) -> FIFOCache[str, tuple[str, str]]:
        if self._uploads is None:
            note = json.loads(await self._state.load(_NOTE) or "{}")
            uploads: FIFOCache[str, tuple[str, str]] = FIFOCache(_NOTED_PARTS)
            uploads.update({part: (file_id, at) for part, (file_id, at) in note.items()})
            self._uploads = self._uploads if self._uploads is not None else uploads
        return self._uploads


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return (parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80))


def _redirected(url: str, location: str) -> str:
    if "redir=" in urlsplit(location).query:  # to the login page
        raise FileUnavailable(_NO_SCOPE)
    return urljoin(url, location)


def _check_response(response: aiohttp.ClientResponse) -> None:
    """Raise FileUnavailable unless *response* carries the file."""
    if response.status in (401, 403):
        raise FileUnavailable(_NO_SCOPE)
    if response.status in (404, 410):
        raise FileUnavailable(_GONE)
    if response.status != 200:
        raise FileUnavailable(f"Slack answers {response.status} for it")
    is_page = response.content_type == "text/html" and "Content-Disposition" not in response.headers
    # Without the scope Slack answers 200 with its login page. A file that is a page itself comes as an attachment.
    if is_page:
        raise FileUnavailable(_NO_SCOPE)


def _completion(part: MessagePart, file: Attachment, file_id: str, mark: str) -> dict[str, Any]:
    body: dict[str, Any] = {"channel_id": part.key.parent.chat, "files": [{"id": file_id, "title": file.name}]}
    if part.key.thread:
        body["thread_ts"] = part.key.thread
    lines = [f"_{mark}_"] if mark else []
    if comment := "\n".join([*lines, _caption(file.caption)] if file.caption else lines):
        body["initial_comment"] = comment
    return body


def _caption(text: str) -> str:
    """Return *text* as Slack shows it. Previews cannot be turned off here, so addresses are shown as code."""
    return (
        _ADDRESS.sub(lambda address: f"`{address[0]}`", escape(render_plain(text)))
        if _ADDRESS.search(text)
        else render_markup(text)
    )
