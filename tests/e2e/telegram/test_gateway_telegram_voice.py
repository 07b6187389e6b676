"""Voice answers before Telegram's server: a voice message of Opus in Ogg, or a file for those who take none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.media_server import ogg
from tests.fakes.openai_server import open_server
from tests.fakes.telegram_gateway import EchoModel, open_gateway
from tests.fakes.telegram_server import TelegramServer

pytestmark = pytest.mark.xdist_group("litellm")


def voice(server: TelegramServer) -> dict[str, Any]:
    """Return the field of a voice message."""
    data = ogg(3)
    return {
        "voice": {"file_id": server.files.keep(data), "duration": 3, "mime_type": "audio/ogg", "file_size": len(data)}
    }


@pytest.mark.parametrize("is_forbidden", [False, True], ids=["voice", "document"])
async def test_a_voice_message_is_answered_by_one(server: TelegramServer, is_forbidden: bool) -> None:
    """The text comes first; the sound follows, answers the same message and does not say the text again."""
    server.files.without_voices = {"42"} if is_forbidden else set()
    model = EchoModel(lambda _: "Six it is.")
    async with open_server() as media:
        settings: dict[str, Any] = {
            "PARLOUR_SPEECH__MODEL": "openai/tts-1",
            "PARLOUR_SPEECH__API_BASE": media.base,
            "PARLOUR_SPEECH__API_KEY": "k",
        }
        async with open_gateway(server, model, **settings) as up:
            server.say(None, **voice(server))
            await server.until(lambda: len(server.posts) == 2)
            await up.idle()
    text, sound = server.posts
    assert text.text == "Six it is."
    assert sound.file is not None
    assert (sound.file.kind, sound.file.name) == ("document" if is_forbidden else "voice", "answer.ogg")
    assert sound.file.data == ogg(words=b"Six it is.")
    assert sound.text == ""
    assert sound.reply_to == text.reply_to
