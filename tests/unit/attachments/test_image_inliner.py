"""Pictures on their way to the model: read once, out of their own scope alone."""

from __future__ import annotations

from typing import Any

from agent.attachments.attachment_loader import ImageInliner
from tests.fakes.web_services import FakeBlobs


class CountingBlobs(FakeBlobs):
    """Blobs that note what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, reference: str) -> bytes | None:
        """Note the reference."""
        self.read.append(reference)
        return await super().get(reference)


def line(*references: str) -> dict[str, Any]:
    """A message with pictures."""
    parts = [{"type": "image_url", "image_url": {"url": f"blob:image/png;{each}"}} for each in references]
    return {"role": "user", "content": [{"type": "text", "text": "look"}, *parts]}


def urls(messages: Any) -> list[str]:
    """Return the addresses, or the words in their place."""
    parts = [part for message in messages for part in message["content"][1:]]
    return [part["image_url"]["url"] if "image_url" in part else part["text"] for part in parts]


async def test_what_is_hot_is_not_read_again() -> None:
    """The same request twice reads the bytes once, and is the same; plain messages are not even copied."""
    blobs = CountingBlobs()
    pictures = ImageInliner(blobs)
    cat = await blobs.put("people/ann", b"cat")
    messages = [line(cat, cat)]
    first = await pictures.inline(messages, "people/ann")
    assert urls(first) == ["data:image/png;base64,Y2F0"] * 2
    assert await pictures.inline(messages, "people/ann") == first
    assert blobs.read == [cat]
    plain = [{"role": "user", "content": "blob:image/png;x"}]
    assert await pictures.inline(plain, "people/ann") is plain


async def test_what_is_kept_is_bounded() -> None:
    """The least recently shown goes first."""
    blobs = CountingBlobs()
    pictures = ImageInliner(blobs, most_bytes=100)
    one, two = [await blobs.put("s", bytes([n]) * 45) for n in (1, 2)]
    for name in (one, two, two, one):
        await pictures.inline([line(name)], "s")
    assert blobs.read == [one, two, one]


async def test_a_picture_of_another_scope_is_none() -> None:
    """A transcript is a file that people can edit: what it names elsewhere, or nowhere, is not shown."""
    blobs = CountingBlobs()
    bobs = await blobs.put("people/bob", b"secret")
    shown = await ImageInliner(blobs).inline([line(bobs, "people/ann/x", "")], "people/ann")
    assert urls(shown) == ["(the picture is not kept here any more)"] * 3
    assert bobs not in blobs.read
