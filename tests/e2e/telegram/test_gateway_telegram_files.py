"""Files through the whole gateway before Telegram's server: what a person sends is read, what is long becomes one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from gateway.i18n import translate
from gateway.ports.memory import FileKind
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.stored_files import stored_files
from tests.fakes.telegram_gateway import TEAM, EchoModel, open_gateway
from tests.fakes.telegram_server import TelegramFault, TelegramServer


def document(server: TelegramServer, name: str, data: bytes, media_type: str = "text/plain") -> dict[str, Any]:
    """Return the field of a message with a document that lies on the server."""
    ident = server.files.keep(data)
    return {"document": {"file_id": ident, "file_name": name, "mime_type": media_type, "file_size": len(data)}}


def stored_file_contents(home: Path) -> list[bytes]:
    """Return the bytes of every file that was stored."""
    return sorted(stored_files(home, FileKind.ATTACHMENT).values())


async def test_a_document_is_read_and_kept(server: TelegramServer) -> None:
    """Downloaded after admission, stored in the sender's scope, and its words are before the model."""
    model = EchoModel(lambda _: "Read.")
    async with open_gateway(server, model) as up:
        words = b"the cellar key hangs behind the clock"
        server.say(None, caption="what is in it?", **document(server, "notes.txt", words))
        await server.until(lambda: len(server.posts) == 1)
        await up.idle()
        assert stored_file_contents(up.home) == [words]
    assert "cellar key" in model.heard[-1]
    assert "notes.txt" in model.heard[-1]


async def test_a_caption_reaches_the_model_once(server: TelegramServer) -> None:
    """It is what the sender wrote, and no fact of the file besides; in an album too, and as the history has it."""
    model = EchoModel(lambda _: "Read.")
    async with open_gateway(server, model) as up:
        server.say(None, caption="what does it say?", **document(server, "a.txt", b"the key"))
        await server.until(lambda: len(server.posts) == 1)
        for n, caption in enumerate(({"caption": "and these two?"}, {})):
            fields: dict[str, Any] = {"media_group_id": "77", **caption}
            server.say(None, **fields, **document(server, f"{n}.txt", b"the clock"))
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
    assert model.heard[-1].count("what does it say?") == 1
    assert model.heard[-1].count("and these two?") == 1


async def test_a_stranger_s_file_is_never_fetched(server: TelegramServer) -> None:
    """Nanobot bug 8: before the access check nothing is downloaded, stored, typed or reacted to."""
    async with open_gateway(server, EchoModel()) as up:
        server.say(None, chat=666, sender=666, **document(server, "a.txt", b"take this"))
        server.say(None, chat=TEAM, sender=666, caption="@parlour_bot", **document(server, "b.txt", b"and this"))
        server.say("hello")
        await server.until(lambda: len(server.posts) == 1)
        await server.until(lambda: not server.updates)
        await up.idle()
        assert stored_file_contents(up.home) == []
    assert "getFile" not in [name for name, _ in server.calls]
    assert {each["chat_id"] for each in (*server.actions, *server.reactions)} <= {42}


async def test_an_album_is_one_turn_with_all_its_files(server: TelegramServer) -> None:
    """Three documents sent together are one question and one answer, and all three are read."""
    model = EchoModel(lambda _: "All read.")
    async with open_gateway(server, model) as up:
        for n in range(3):
            caption: dict[str, Any] = {"caption": "compare"} if n == 0 else {}
            fields = document(server, f"{n}.txt", f"words of file {n}".encode())
            server.say(None, media_group_id="album", **fields, **caption)
        await server.until(lambda: len(server.posts) == 1)
        await server.until(lambda: not server.updates)
        await up.idle()
        assert len(stored_file_contents(up.home)) == 3
    assert len(model.heard) == 1
    assert [f"words of file {n}" in model.heard[0] for n in range(3)] == [True] * 3
    assert server.shown(42) == ["All read."]


async def test_a_file_that_cannot_be_had_is_said(server: TelegramServer) -> None:
    """Too large for bots, or gone: the message is answered, and the model knows what is missing and why."""
    model = EchoModel(lambda _: "I could not read it.")
    async with open_gateway(server, model) as up:
        large = document(server, "film.mkv", b"x")
        large["document"]["file_size"] = 21_000_000
        server.say(None, caption="this?", **large)
        await server.until(lambda: len(server.posts) == 1)
        server.files.faults.append("gone")
        server.say(None, caption="and this?", **document(server, "gone.txt", b"x"))
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
        assert stored_file_contents(up.home) == []
    assert "20 MB" in model.heard[0]
    assert "does not have it any more" in model.heard[1]
    assert server.files.downloads == ["file-1"]


class FileReturningModel(FakeChatModel):
    """Sends the file of that name back, and then says so."""

    name = "returner"

    def __init__(self, file: str) -> None:
        self._file = file

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Call the tool first, then answer."""
        tokens = TokenUsage(10, 10, 0)
        if request.messages[-1]["role"] == "tool":
            return ChatReply(text="Here it is.", tool_calls=(), model=self.name, tokens=tokens, cost=0.0)
        call = ToolCall(id="call-1", name="send_file", arguments=json.dumps({"name": self._file}))
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=tokens, cost=0.0)


@pytest.mark.parametrize("fault", ["", "lost"])
async def test_an_image_comes_back_as_a_photo(server: TelegramServer, fault: str) -> None:
    """An image in, and out again with the answer, as a photo with the same bytes; a reply that is lost is marked."""
    out = io.BytesIO()
    Image.new("RGB", (64, 48), "navy").save(out, "PNG")
    if fault:
        server.fail("sendPhoto", TelegramFault(fault))
    async with open_gateway(server, FileReturningModel("cat.png")) as up:
        server.say(None, caption="send it back", **document(server, "cat.png", out.getvalue(), "image/png"))
        await server.until(lambda: len(server.posts) == (3 if fault else 2))
        await up.idle()
    answer, *photos = server.posts
    assert answer.text == "Here it is."
    for photo in photos:
        assert photo.file is not None
        assert (photo.file.kind, photo.file.data) == ("photo", out.getvalue())
    mark = translate("delivery.may_repeat")
    assert [photo.text.endswith(mark) for photo in photos] == [False, True][: len(photos)]
