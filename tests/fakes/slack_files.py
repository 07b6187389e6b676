"""Files of a workspace, and messages that stream: what Slack keeps beside its messages, as strict as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.slack_workspace import BOT_ID, BOT_USER, TEAM, FakeSlackChat, SlackError, SlackWorkspace

LOGIN = "<!DOCTYPE html><html><head><title>Sign in</title></head></html>"
_LONGEST_STREAM = 12_000


@dataclass(slots=True)
class KeptFile:
    """One file. *is_there*: completed, so that people and files.info know it."""

    id: str
    name: str
    data: bytes = b""
    kind: str = "application/octet-stream"
    length: int = 0
    is_there: bool = True
    alt: str = ""  # what describes a picture
    shares: dict[str, list[dict[str, str]]] = field(default_factory=dict)


class FileShelf(SlackWorkspace):
    """The part of a workspace that keeps files."""

    on_call: Callable[[str, str], None]

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, KeptFile] = {}
        self.downloads: list[tuple[str, str]] = []  # path and Authorization of every download
        self.uploads: list[str] = []  # files whose bytes were brought
        self.upload_faults: list[int] = []  # statuses for the next uploads
        self.moved: dict[str, str] = {}  # file -> where a download of it is sent on to
        self.shows_login = False  # a refused download is the login page at once, not a redirect to it
        self.shares_after = 0  # calls of files.info until Slack says where a file stands
        self.knows_streams = True

    # -- what people do ------------------------------------------------------------------------

    def attach(self, name: str, data: bytes, kind: str, *, checked: bool = False) -> dict[str, Any]:
        """Let somebody upload a file; return it as messages show it. *checked*: they name it, and no more."""
        file = KeptFile(f"F{next(self._numbers):08d}", name, data, kind)
        self.files[file.id] = file
        return {"id": file.id, "file_access": "check_file_info"} if checked else self._shown(file)

    def _shown(self, file: KeptFile) -> dict[str, Any]:
        url = f"{self.base}/files-pri/{file.id}"
        shown = {"id": file.id, "name": file.name, "mimetype": file.kind, "size": len(file.data), "mode": "hosted"}
        return {**shown, "url_private": f"{url}/view", "url_private_download": f"{url}/download"}

    # -- what the app does over HTTP -----------------------------------------------------------

    async def _download(self, request: web.Request) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        self.downloads.append((request.path, authorization))
        file = self.files.get(request.match_info["file"])
        if authorization != f"Bearer {self.bot_token}" or "files:read" not in self.scopes:
            if self.shows_login:
                return web.Response(text=LOGIN, content_type="text/html")
            return web.Response(status=302, headers={"Location": f"/?redir={request.path}"})
        if file is None:
            return web.Response(status=404)
        if file.id in self.moved:
            return web.Response(status=302, headers={"Location": self.moved[file.id]})
        headers = {"Content-Disposition": f'attachment; filename="{file.name}"'}
        return web.Response(body=file.data, content_type=file.kind, headers=headers)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        assert request.query["redir"]
        return web.Response(text=LOGIN, content_type="text/html")

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        file = self.files[request.match_info["file"]]
        assert "Authorization" not in request.headers, "the address is proof enough, and not always Slack's own host"
        data = await request.read()
        self.on_call("upload", "before")
        status = self.upload_faults.pop(0) if self.upload_faults else 200
        if status == 200 and len(data) != file.length:
            return web.Response(status=400, text="length does not match")
        if status == 200:
            file.data = data
            self.uploads.append(file.id)
        self._change()
        self.on_call("upload", "after")
        return web.Response(status=status, text=f"OK - {len(data)}")

    # -- methods -------------------------------------------------------------------------------

    def _files_getuploadurlexternal(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if not arguments.get("filename") or int(arguments.get("length") or 0) <= 0:
            raise SlackError("invalid_arguments")
        length = int(arguments["length"])
        file = KeptFile(f"F{next(self._numbers):08d}", arguments["filename"], length=length, is_there=False)
        file.alt = str(arguments.get("alt_txt", ""))
        self.files[file.id] = file
        return {"upload_url": f"{self.base}/upload/{file.id}", "file_id": file.id}

    def _files_completeuploadexternal(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        files = [self.files.get(each["id"]) for each in arguments["files"]]
        if not all(file is not None and file.id in self.uploads for file in files):
            raise SlackError("file_not_found")
        place = self._place({"channel": arguments["channel_id"]}, writes=True)
        message: dict[str, Any] = {"type": "message", "subtype": "file_share", "user": BOT_USER, "bot_id": BOT_ID}
        message |= {"ts": self._ts(), "text": arguments.get("initial_comment") or "", "team": TEAM}
        share = {"ts": message["ts"]}
        if thread := arguments.get("thread_ts"):
            if not any(known["ts"] == thread for known in place.messages):
                raise SlackError("thread_not_found")
            message["thread_ts"] = share["thread_ts"] = thread
        there = [file for file in files if file is not None]
        for file in there:
            file.is_there = True
            file.shares.setdefault(place.id, []).append(share)
        message["files"] = [self._shown(file) for file in there]
        place.messages.append(message)
        self.tell(place.id, message)
        return {"files": [{"id": file.id} for file in there]}

    def _files_info(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        file = self.files.get(arguments["file"])
        if file is None or not file.is_there:
            raise SlackError("file_not_found")
        self.shares_after -= 1
        shares = file.shares if self.shares_after < 0 else {}
        return {"file": {**self._shown(file), "shares": {"public": shares} if shares else {}}}

    def _chat_startstream(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._must_stream()
        place = self._place(arguments, writes=True)
        thread = arguments.get("thread_ts")
        if not any(known["ts"] == thread for known in place.messages):
            raise SlackError("thread_not_found" if thread else "invalid_thread_ts")
        if place.kind != "im":
            for name in ("recipient_team_id", "recipient_user_id"):
                if not arguments.get(name):
                    raise SlackError(f"missing_{name}")
        message = {"type": "message", "user": BOT_USER, "bot_id": BOT_ID, "ts": self._ts(), "thread_ts": thread}
        message |= {"text": arguments.get("markdown_text") or "", "streams": True}
        place.messages.append(message)
        return {"channel": place.id, "ts": message["ts"]}

    def _chat_appendstream(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        message = self._streaming(arguments)
        if len(message["text"]) + len(arguments["markdown_text"]) > _LONGEST_STREAM:
            raise SlackError("msg_too_long")
        message.setdefault("was", []).append(message["text"])
        message["text"] += arguments["markdown_text"]
        return {"channel": arguments["channel"], "ts": message["ts"]}

    def _chat_stopstream(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        message = self._streaming(arguments)
        message["streams"] = False
        message["text"] += arguments.get("markdown_text") or ""
        return {"channel": arguments["channel"], "ts": message["ts"]}

    def _streaming(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._must_stream()
        place = self._place(arguments, writes=True)
        message = next((known for known in place.messages if known["ts"] == arguments["ts"]), None)
        if message is None:
            raise SlackError("message_not_found")
        if not message.get("streams"):
            raise SlackError("message_not_in_streaming_state")
        return message

    def _must_stream(self) -> None:
        if not self.knows_streams:
            raise SlackError("unknown_method")

    def _place(self, arguments: Mapping[str, Any], *, writes: bool = False) -> FakeSlackChat:
        """Find a conversation we are in; the server's affair."""
        raise NotImplementedError
