"""Delivery of message parts to Slack: posts, edits, streams, ephemeral messages, status, files. One attempt per call.

Downloads come from Slack's own hosts only, with the token that no other host may see.

An upload takes three steps: files.getUploadURLExternal names a file, a POST transfers it, files.completeUploadExternal
shares it in the chat. Only the last step is visible, and the file id is stored before it: after a kill before that
step nothing was shared.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import structlog
from cachetools import FIFOCache

from channels.kit.background import ChatRateLimits, TokenBucket
from channels.kit.bodies import load_file
from channels.slack import render
from channels.slack.api import SlackApi, SlackPlaceGone, SlackRefusal
from channels.slack.content import download_url, is_file_id, shared_at
from channels.slack.interactions import SlackInteractions
from channels.slack.parse import SlackBotIdentity
from channels.slack.render import escape, part_of
from gateway.errors import FileUnavailable, OutcomeUnknown, RetryLater, SendFailed
from gateway.events import Attachment, MessagePart, OutboundKind, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChatActivity
from gateway.text import sanitize

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore
    from gateway.store.records import SqlChannelState

log = structlog.get_logger(__name__)

# Burst and seconds for each. chat.update is Tier 3 of the workspace; the edits of answers come on top of previews.
_PREVIEW_EDITS = (20, 1.25)
_POST_BURST, _POST_INTERVAL = 5, 1.0  # of one chat


class SlackOutbound:
    """Sends the parts of one workspace; *streams*, if not None, show previews."""

    def __init__(
        self,
        api: SlackApi,
        streams: SlackStreams | None,
        interactions: SlackInteractions,
        language: Callable[[SessionKey], str],
    ) -> None:
        self._language = language
        self._api = api
        self._streams = streams
        self._interactions = interactions
        self.posts = ChatRateLimits(_POST_BURST, lambda _: _POST_INTERVAL)
        self.preview_edits = TokenBucket(*_PREVIEW_EDITS)

    async def send(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        """Post *part* with its send key as metadata and return its ts.

        The answer to a slash command goes to its response address, which gives no ts, where the app may not write.
        """
        try:
            return await self._send(part, may_be_duplicate=may_be_duplicate)
        except SlackPlaceGone:
            body = self._body(part, may_be_duplicate=may_be_duplicate)
            if part.moved_to or not await self._interactions.respond(part, body):
                raise
        self._settle(part)
        return ""

    async def _send(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        await self.posts.of(part.key.parent.chat).acquire()
        if part.visible_to and part.visible_to != part.key.chat:
            # A message posted to a user's id goes to the direct chat, which only they read.
            return await self._send_ephemeral(part, may_be_duplicate=may_be_duplicate)
        is_preview = part.kind is OutboundKind.PREVIEW and not part.is_placed and not may_be_duplicate
        may_stream = self._streams if is_preview else None
        if may_stream is not None and (ts := await may_stream.begin(part)):
            return ts
        answer = await self._post(
            part, self._body(part, may_be_duplicate=may_be_duplicate), metadata=render.metadata(part)
        )
        self._settle(part)
        return str(answer["ts"])

    async def edit(self, ts: str, part: MessagePart) -> None:
        """Replace the message *ts*; its send key becomes the part's."""
        chat = part.key.parent.chat
        if part.kind is OutboundKind.PREVIEW:
            if self._streams is not None and await self._streams.append(ts, part):
                return
            if delay := self.preview_edits.try_acquire():
                raise RetryLater(timedelta(seconds=delay), "the workspace's edits are used up for now")
        elif self._streams is not None:
            await self._streams.end(ts, chat)
        try:
            await self._update(ts, part)
        except SlackRefusal:
            if self._streams is None:
                raise
            # Perhaps a stream that an earlier run started and did not stop.
            await self._streams.end(ts, chat, surely=True)
            await self._update(ts, part)
        self._settle(part)

    async def post_replacement(self, part: MessagePart, line: str) -> str:
        """Post *line* instead of *part*, with its send key; return the ts."""
        await self.posts.of(part.key.parent.chat).acquire()
        plain = {"channel": part.key.parent.chat, "text": render.escape(line), "mrkdwn": False, "parse": "none"}
        answer = await self._post(part, plain, metadata=render.metadata(part))
        self._settle(part)
        return str(answer["ts"])

    async def refer_to_privacy(self, part: MessagePart) -> None:
        """Ask the user of a private part to write privately, in an ephemeral message."""
        line = {
            "channel": part.key.parent.chat,
            "text": translate("slack.write_privately", self._language(part.key)),
            "mrkdwn": False,
        }
        await self._api.post("chat.postEphemeral", **_in_thread(part, line), user=part.visible_to)

    def _body(self, part: MessagePart, *, may_be_duplicate: bool) -> dict[str, Any]:
        return render.message_body(part, may_be_duplicate=may_be_duplicate, language=self._language)

    async def _update(self, ts: str, part: MessagePart) -> None:
        body = render.message_body(part, may_be_duplicate=False)
        del body["mrkdwn"]  # chat.update has no such switch
        await self._api.post("chat.update", **body, ts=ts, metadata=render.metadata(part))

    async def _post(self, part: MessagePart, body: dict[str, Any], **more: object) -> Any:
        return await self._api.post(
            "chat.postMessage", **_in_thread(part, body), unfurl_links=False, unfurl_media=False, **more
        )

    async def _send_ephemeral(self, part: MessagePart, *, may_be_duplicate: bool) -> str:
        """Show a part to one user; if Slack refuses, post a line that asks them to write privately."""
        body = _in_thread(part, self._body(part, may_be_duplicate=may_be_duplicate))
        try:
            answer = await self._api.post("chat.postEphemeral", **body, user=part.visible_to)
        except SlackRefusal as error:
            if isinstance(error, SlackPlaceGone) and await self._interactions.is_pending(part):
                raise
            if part.id.endswith(".1"):
                line = {**body, "text": translate("slack.write_privately", self._language(part.key)), "mrkdwn": False}
                await self._post(part, line, metadata=render.LINE)
            raise SlackRefusal(f"chat.postEphemeral: {error.code}") from error
        self._settle(part)
        return str(answer["message_ts"])

    def _settle(self, part: MessagePart) -> None:
        """Remove the buttons that the delivered part settles."""
        self._interactions.presses.settle(part)


def _in_thread(part: MessagePart, body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "thread_ts": part.key.thread} if part.key.thread else body


_INTERVAL = 90.0  # seconds; Slack removes a status after about two minutes
_REFUSED_FOR = 3_600.0  # seconds without a call after a refusal
_STATUS_LIMIT = 50  # characters
_REFUSALS = frozenset(
    {"missing_scope", "unknown_method", "not_allowed_token_type", "no_permission", "method_deprecated"}
)


class SlackActivity:
    """The statuses of one workspace's threads."""

    def __init__(self, api: SlackApi, language: Callable[[SessionKey], str]) -> None:
        self._api = api
        self._language = language
        self._shown: dict[SessionKey, tuple[float, str]] = {}
        self._refused_until = 0.0

    async def show(self, activity: ChatActivity) -> None:
        """Show or clear a status; never raises."""
        key = activity.key
        if not key.thread:
            return
        if activity.on:
            await self._set(key, (activity.text or translate("slack.thinking", self._language(key)))[:_STATUS_LIMIT])
        elif self._shown.pop(key, None):
            await self._set(key, "")

    async def run(self) -> None:
        """Repeat statuses before they fade, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL / 3)
            now = asyncio.get_running_loop().time()
            for key, (at, text) in list(self._shown.items()):
                if now - at >= _INTERVAL and key in self._shown:
                    await self._set(key, text)

    async def _set(self, key: SessionKey, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._refused_until:
            return
        if text:
            self._shown[key] = (now, text)
        try:
            await self._api.post(
                "assistant.threads.setStatus", channel_id=key.parent.chat, thread_ts=key.thread, status=text
            )
        except SlackRefusal as error:
            self._shown.pop(key, None)
            if error.code in _REFUSALS:
                self._refused_until = now + _REFUSED_FOR
                log.info("slack.no_status", reason=error.code, mend="the scope assistant:write shows that we work")
        except SendFailed as error:
            log.debug("slack.status_failed", reason=str(error))


# -- streams ---------------------------------------------------------------------------------------
# Slack's own streams as previews: text is appended to a message, and an edit sets the final text.
#
# A stream cannot be read back and cannot shrink, so only stable plain text is appended. Any doubt ends it with
# `chat.stopStream` and an ordinary edit. Without streams a preview is posted as a message.

_SIZE = 200  # open streams; each ends with its answer
_STREAM_LIMIT = 3_500  # characters; a longer preview is cut
_MARKS = re.compile(r"[*_~`\[\]|#>\\]")
_MENTIONS = re.compile(r"<(?=[!@#])")
_NEVER = frozenset({"unknown_method", "method_deprecated", "not_allowed_token_type", "missing_scope"})

SenderOf = Callable[[str, str], tuple[str, str]]


class SlackStreams:
    """The open streams of one workspace."""

    def __init__(self, api: SlackApi, sender_of: SenderOf) -> None:
        self._api = api
        self._sender_of = sender_of
        self._open: FIFOCache[str, str] = FIFOCache(_SIZE)  # ts -> text so far
        self.is_off = False  # Slack refused streams for good

    async def begin(self, part: MessagePart) -> str:
        """Start a stream with the text of *part* and return its ts; "" if it must be posted as a message."""
        chat, thread = part.key.parent.chat, part.key.thread
        user, team = self._sender_of(chat, part.reply_to)
        text = stable_prefix(part.plain)
        if self.is_off or not thread or not text or (not chat.startswith("D") and not (user and team)):
            return ""
        body: dict[str, Any] = {"channel": chat, "thread_ts": thread, "markdown_text": text}
        if user and team:
            body |= {"recipient_user_id": user, "recipient_team_id": team}
        try:
            answer = await self._api.post("chat.startStream", **body)
        except SlackRefusal as error:
            self.is_off = error.code in _NEVER
            log.info("slack.no_stream", reason=error.code, for_good=self.is_off)
            return ""
        ts = str(answer["ts"])
        self._open[ts] = text
        return ts

    async def append(self, ts: str, part: MessagePart) -> bool:
        """Append the new text of *part*; return False if the stream is closed and the caller has to edit."""
        sent = self._open.get(ts)
        if sent is None:
            return False
        text = stable_prefix(part.plain)
        if len(text) <= len(sent) and sent.startswith(text):
            return True  # no stable text is new
        if text.startswith(sent):
            try:
                await self._api.post(
                    "chat.appendStream", channel=part.key.parent.chat, ts=ts, markdown_text=text[len(sent) :]
                )
            except RetryLater:
                raise
            except SendFailed as error:
                log.info("slack.stream_broke", reason=str(error))
            else:
                self._open[ts] = text
                return True
        await self.end(ts, part.key.parent.chat)
        return False

    async def end(self, ts: str, chat: str, *, surely: bool = False) -> None:
        """Close the stream of *ts* if it is open, or if *surely* in any case. Raises RetryLater."""
        sent = self._open.pop(ts, None)
        if sent is None and not surely:
            return
        try:
            await self._api.post("chat.stopStream", channel=chat, ts=ts)
        except RetryLater:
            self._open[ts] = sent or ""
            raise
        except (SlackRefusal, OutcomeUnknown) as error:
            log.info("slack.stream_end", reason=str(error))  # an edit follows


def stable_prefix(text: str) -> str:
    """Return the part of a growing answer that will not change: up to the last line's first mark, without mentions."""
    head, newline, last = text[:_STREAM_LIMIT].rpartition("\n")
    mark = _MARKS.search(last)
    prefix = f"{head}{newline}{last[: mark.start()] if mark else last}"
    return _MENTIONS.sub("<\u200b", prefix.rstrip())


# -- sent lookup -----------------------------------------------------------------------------------
# Looks up parts of an uncertain delivery: Slack has no send key, but returns the metadata of messages.

_METADATA = "metadata.message:read"
_HISTORY = {"C": ("channels:history", "groups:history"), "G": ("groups:history", "mpim:history"), "D": ("im:history",)}
_PAGE = 100
_PAGES = 10

Matches = Callable[[Mapping[str, Any]], bool]


def missing_scopes(chat: str, scopes: frozenset[str], *, metadata: bool = True) -> list[str]:
    """Return the scopes that the look-up in *chat* needs and the token lacks."""
    history = _HISTORY.get(chat[:1], ())
    missing = [] if not history or any(scope in scopes for scope in history) else [history[0]]
    return [*missing, _METADATA] if metadata and _METADATA not in scopes else missing


async def find_sent_part(
    api: SlackApi, part: MessagePart, bot: SlackBotIdentity, scopes: frozenset[str], *, streams: bool = False
) -> str:
    """Return the ts of the message that is *part*, or "" if it was not sent.

    *streams*: the part may be a stream, which carries no key: it is the bot's only message in the thread without one.
    Raises RetryLater, and OutcomeUnknown without scopes, for an ephemeral message, or after too many messages.
    """
    if part.visible_to:
        raise OutcomeUnknown("what only one person sees cannot be read back")
    _check_scopes(missing_scopes(part.key.parent.chat, scopes))

    def matches(message: Mapping[str, Any]) -> bool:
        if message.get("user") != bot.user:
            return False
        has_no_key = not message.get("metadata") and not message.get("files")
        return part_of(message) == part.id or (streams and has_no_key)

    return await _search_once(api, part, matches)


async def find_shared_file(api: SlackApi, part: MessagePart, file: str, scopes: frozenset[str]) -> str:
    """Return *file* if a message of the chat contains it, else ""; raises as `find_sent_part`."""
    _check_scopes(missing_scopes(part.key.parent.chat, scopes, metadata=False))

    def matches(message: Mapping[str, Any]) -> bool:
        return any(each.get("id") == file for each in message.get("files") or ())

    return file if await _search_once(api, part, matches) else ""


def _check_scopes(missing: list[str]) -> None:
    if missing:
        raise OutcomeUnknown(f"reading back needs {', '.join(missing)}")


async def _search_once(api: SlackApi, part: MessagePart, matches: Matches) -> str:
    try:
        return await _search(api, part, matches)
    except RetryLater:
        raise
    except SendFailed as error:
        raise OutcomeUnknown(f"reading back: {error}") from error


async def _search(api: SlackApi, part: MessagePart, matches: Matches) -> str:
    query: dict[str, Any] = {"channel": part.key.parent.chat, "limit": _PAGE, "include_all_metadata": "true"}
    if part.reply_to:
        query["oldest"] = part.reply_to  # an answer is younger than its question
    if part.key.thread:
        query["ts"] = part.key.thread
    method = "conversations.replies" if part.key.thread else "conversations.history"
    for _ in range(_PAGES):
        page = await api.get(method, **query)
        for message in page.get("messages") or ():
            if matches(message):
                return str(message["ts"])
        cursor = str((page.get("response_metadata") or {}).get("next_cursor") or "")
        if not cursor:
            return ""
        query["cursor"] = cursor
    raise OutcomeUnknown("too much was said since to read it all back")


UPLOAD_LIMIT = 100_000_000  # bytes of one file
_ALT = 1_000  # characters of a picture's description
UPLOAD_SCOPE = "files:write"
_CHUNK = 64 * 1024
_REDIRECTS = 3
_MOVED = frozenset({301, 302, 303, 307, 308})
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=20)
_NO_SCOPE = "Slack does not hand files to this app: it lacks the scope files:read"
_GONE = "gone from Slack"
_ACTED_ON = re.compile(r"[*_~`]|^>|:[\w+-]+:|https?://")  # marks, quotes, emoji and previews
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
        described = {"alt_txt": sanitize(file.caption)[:_ALT]} if file.kind == "image" and file.caption else {}
        ticket = await self._api.ask(
            "files.getUploadURLExternal", filename=file.name, length=str(len(data)), **described
        )
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
    # What a voice message says stands above it already.
    caption = "" if file.kind in ("voice", "audio") else file.caption
    if comment := "\n".join([*lines, _caption(caption)] if caption else lines):
        body["initial_comment"] = comment
    return body


def _caption(text: str) -> str:
    """Return *text* escaped; as code if it has markup or addresses, which Slack always renders in a file's comment."""
    words = " ".join(sanitize(text).split())
    return f"`{escape(words.replace('`', 'ˋ'))}`" if _ACTED_ON.search(words) else escape(words)
