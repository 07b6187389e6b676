"""Descriptions of Discord content that is neither text nor a file: stickers, polls, embeds, components, forwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Payload: TypeAlias = Mapping[str, Any]

_FORWARD = 1  # message_reference.type
_TEXT_DISPLAY = 10  # component type: docs.discord.com/developers/components/reference
_DEEPEST = 5  # components within components
_EMBED_LIMIT = 4_000  # characters of all embeds together


def snapshots(payload: Payload) -> Sequence[Payload]:
    """Return the messages that a message forwards, which have no author."""
    if (payload.get("message_reference") or {}).get("type") != _FORWARD:
        return ()
    return [each.get("message") or {} for each in payload.get("message_snapshots") or ()]


def describe(payload: Payload, *, has_embeds: bool) -> str:
    """Return lines for stickers, a poll and text components; with *has_embeds* also the text of embeds."""
    lines = [f"(sticker: {each['name']})" for each in payload.get("sticker_items") or payload.get("stickers") or ()]
    if poll := payload.get("poll"):
        answers = [str((each.get("poll_media") or {}).get("text") or "") for each in poll.get("answers") or ()]
        lines.append(f"(a poll: {poll['question'].get('text', '')} {' / '.join(answers)})")
    if has_embeds:
        lines += _component_texts(payload.get("components") or ())
        lines.append("\n".join(_embed_texts(payload.get("embeds") or ()))[:_EMBED_LIMIT])
    return "\n".join(line for line in lines if line)


def _component_texts(components: Sequence[Payload], depth: int = 0) -> Iterator[str]:
    for each in components if depth < _DEEPEST else ():
        if each.get("type") == _TEXT_DISPLAY:
            yield str(each.get("content") or "")
        yield from _component_texts(each.get("components") or (), depth + 1)


def _embed_texts(embeds: Sequence[Payload]) -> Iterator[str]:
    for each in embeds:
        author = (each.get("author") or {}).get("name")
        yield from (str(text) for text in (author, each.get("title"), each.get("description")) if text)
        yield from (f"{field.get('name', '')}: {field.get('value', '')}" for field in each.get("fields") or ())
        yield from (f"({name})" for name in ("image", "video") if each.get(name))
        yield from (str(text) for text in ((each.get("footer") or {}).get("text"), each.get("url")) if text)
