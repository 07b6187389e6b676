"""A preview only grows: over a long answer, with every platform's own formatting, at every edit."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.render import LIMIT as DISCORD_LIMIT
from channels.discord.render import render as for_discord
from channels.slack.render import LIMIT as SLACK_LIMIT
from channels.slack.render import render as for_slack
from channels.telegram.render import LIMIT as TELEGRAM_LIMIT
from channels.telegram.render import render as for_telegram
from gateway.delivery.part_planner import GrowingText
from gateway.events import ChatKind, MessagePart, OutboundMessage
from gateway.i18n import translate
from gateway.text import LengthUnit, render_plain, split
from gateway.text.redaction import SecretRedactor
from tests.fakes.memory_channel import RINGING, FakeChannel
from tests.fakes.turns import ANN
from tests.unit.delivery.conftest import OpensGateway

Render = Callable[..., Sequence[MessagePart]]
PLATFORMS: dict[str, tuple[Render, int, str]] = {
    "telegram": (for_telegram, TELEGRAM_LIMIT, "utf16"),
    "discord": (for_discord, DISCORD_LIMIT, "characters"),
    "slack": (for_slack, SLACK_LIMIT, "characters"),
}
GOES_ON = translate("delivery.goes_on")
SECTION = """## Section {n}

Some **bold words** and a [link]({n}) to [a page](https://a.example/{n}?x=1&y=2), in `code {n}` too.

- one point with enough words to fill most of a line, number {n}
- another & a third, <shown> as they are

| what | how much |
|---|---|
| tea {n} | 1 |
| coffee {n} | 2 |

```py
def f{n}(x: int) -> int:
    return x * {n}
```

"""
LONG = "".join(SECTION.format(n=n) for n in range(1, 90))[:30_000]
DENSE = "# a\n\n& <b> c & d\n\n" * 1_700
PROSE = "Word after word it is told how all of this came about in the end. " * 450


def letters(text: str) -> str:
    """Return what people read of *text*: its letters and digits."""
    return "".join(re.findall(r"\w", text.replace(GOES_ON, "").replace("…", "")))


@pytest.mark.parametrize("kind", [ChatKind.DIRECT, ChatKind.GROUP], ids=["direct", "group"])
@pytest.mark.parametrize("text", [LONG, DENSE, PROSE], ids=["mixed", "dense", "prose"])
@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_preview_takes_nothing_back(
    opens: OpensGateway, monkeypatch: pytest.MonkeyPatch, platform: str, text: str, kind: ChatKind
) -> None:
    """30,000 characters in 20 s: each edit shows more, a full preview says so, and the answer begins with it."""
    render, limit, unit = PLATFORMS[platform]

    def rendered(_: FakeChannel, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        parts = render(message, least=least)
        return [replace(part, payload=_text_of(part)) for part in parts]

    monkeypatch.setattr(FakeChannel, "render", rendered)
    gateway = await opens(
        replace(RINGING, text_limit=limit, unit=unit, preview_every=timedelta(seconds=1.2), file_limit=1 << 20)
    )
    lease, preview = await gateway.begin_preview()
    for n in range(1, 201):
        preview.show(text[: len(text) * n // 200])
        await asyncio.sleep(0.1)
    await preview.close()
    (post,) = gateway.platform.chats[ANN.chat]
    shown = list(post.versions)
    assert len(shown) >= 2
    assert sum(GOES_ON in version for version in shown) == 1
    assert shown[-1].rstrip("`\n ").endswith(GOES_ON)
    await gateway.commit(lease, text, chat_kind=kind)
    await gateway.settled()
    for before, after in pairwise(map(letters, post.versions)):
        assert after.startswith(before)
    whole = "".join(letters(each) for each in gateway.platform.texts(ANN))
    if kind is ChatKind.DIRECT:
        assert len(whole) >= len(letters(render_plain(text))) * 0.9 or whole.endswith(
            letters(translate("delivery.cut"))
        )


def _text_of(part: MessagePart) -> str:
    if part.payload.startswith('{"text"'):
        return str(json.loads(part.payload)["text"])
    return part.payload or part.plain


PIECES = (
    "word ", "**bold** ", "\n\n", "\n- ", "[a](http://b.example) ", "`code` ", "```py\nx = 1\n```\n", "漢字", "🇩🇪",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n", "# head\n", "a & b ", "[x]: http://y.example\n", "12345678 ", "sk-",
)  # fmt: skip
# A second definition would make a link of what the first one's line showed.
pieces = st.lists(st.sampled_from(PIECES), min_size=1, max_size=60).map("".join).filter(lambda t: t.count("[x]") < 2)


@given(pieces, st.integers(1, 40))
def test_whatever_is_written_grows(text: str, step: int) -> None:
    """For any Markdown in deltas of any size, the letters shown are a beginning of those shown next."""

    def render(markdown: str) -> Sequence[MessagePart]:
        return [
            MessagePart(id=f"t.0.{n}", key=ANN, payload=piece, plain=render_plain(piece))
            for n, piece in enumerate(split(markdown, limit=160), 1)
        ]

    growing = GrowingText(render, SecretRedactor(), limit=160, unit=LengthUnit.CHARACTERS, note="(on)")
    shown = [""]
    for end in range(step, len(text) + step, step):
        part = growing.grow(text[:end])
        if part is not None:
            shown.append(letters(part.plain.removesuffix("(on)")))
    for before, after in pairwise(shown):
        assert after.startswith(before)
