"""Files through the whole gateway before Telegram's server: what a person sends is read, what is long becomes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.ports.memory import FileKind
from tests.fakes.stored_files import stored_files
from tests.fakes.telegram_gateway import TEAM, EchoModel, open_gateway
from tests.fakes.telegram_server import TelegramServer


def document(server: TelegramServer, name: str, data: bytes, media_type: str = "text/plain") -> dict[str, Any]:
    """Return the field of a message with a document that lies on the server."""
    ident = server.files.keep(data)
    return {"document": {"file_id": ident, "file_name": name, "mime_type": media_type, "file_size": len(data)}}


def stored_file_contents(home: Path) -> list[bytes]:
    """Return the bytes of every file that was stored."""
    return sorted(stored_files(home, FileKind.ATTACHMENT).values())


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
