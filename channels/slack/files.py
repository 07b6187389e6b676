"""Files in: read from Slack's own hosts, and from nowhere else, with the token that only they may see."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from urllib.parse import urljoin, urlsplit

import aiohttp

from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.codec import download_url, is_file_id
from gateway.errors import FileUnavailable, SendFailed
from gateway.events import Attachment

_PIECE = 64 * 1024
_REDIRECTS = 3
_MOVED = frozenset({301, 302, 303, 307, 308})
_PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=20)
_NO_SCOPE = "Slack does not hand files to this app: it lacks the scope files:read"
_GONE = "gone from Slack"


class SlackFiles:
    """Fetches what attachments name."""

    def __init__(self, api: SlackApi, base_url: str) -> None:
        self._api = api
        self._base = _origin(base_url)

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file as it comes; see `gateway.ports.SupportsFiles`."""
        url = await self._look_up(attachment.url) if is_file_id(attachment.url) else attachment.url
        for _ in range(_REDIRECTS + 1):
            self._check(url)
            try:
                async with self._api.open(url, timeout=_PATIENCE) as response:
                    if response.status in _MOVED:
                        url = _next(url, response.headers.get("Location", ""))
                        continue
                    _refuse(response)
                    async for piece in response.content.iter_chunked(_PIECE):
                        yield piece
                    return
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise FileUnavailable("it could not be downloaded from Slack") from error
        raise FileUnavailable("Slack sends us in circles for it")

    async def _look_up(self, ident: str) -> str:
        """Ask where a file is whose message does not say it (file_access: check_file_info)."""
        try:
            answer = await self._api.get("files.info", file=ident)
        except SlackRefusal as error:
            is_scope = error.code == "missing_scope"
            raise FileUnavailable(_NO_SCOPE if is_scope else _GONE) from error
        except SendFailed as error:
            raise FileUnavailable("Slack did not say where it is") from error
        file = answer.get("file") or {}
        found = download_url({**file, "file_access": ""})
        if not found:
            raise FileUnavailable(_GONE)
        return found

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


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return (parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80))


def _next(url: str, location: str) -> str:
    if "redir=" in urlsplit(location).query:  # to the page where people log in
        raise FileUnavailable(_NO_SCOPE)
    return urljoin(url, location)


def _refuse(response: aiohttp.ClientResponse) -> None:
    """Raise FileUnavailable unless *response* is the file."""
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
