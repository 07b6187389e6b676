"""What formatting an answer costs: no more than its length asks for, and never more than the ceiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from channels.discord.render import render as for_discord
from channels.slack.render import render as for_slack
from channels.telegram.render import render as for_telegram
from channels.web.frame_codec import render as for_frames
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.text import render_plain
from gateway.text.markdown_tree import MOST_WEIGHT, weight

PLATFORMS: dict[str, Callable[[OutboundMessage], Sequence[MessagePart]]] = {
    "telegram": for_telegram,
    "discord": for_discord,
    "slack": for_slack,
    "page": for_frames,
}
WIDE_TABLE = "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + "|b|\n" * 650
HOSTILE = {
    "headings": "# a\n" * 4_000,
    "more headings": "# a\n" * 25_000,
    "marks": "*a **b _c `d` ~~e~~ [f](g) ![h](i) <j> &amp;\n" * 2_300,
    "pictures": "![" * 50_000,
    "short rows": WIDE_TABLE * 20,
    "lines": "a\n" * 50_000,
    "a nested list": "".join(f"{'  ' * n}- a\n" for n in range(300)),
}


def answer(text: str) -> OutboundMessage:
    """Return *text* as an answer in a chat."""
    return OutboundMessage(id="tabcdefghijklmnop.1", key=SessionKey("telegram", "1"), text=text)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many tokens each call of the Markdown parser made."""
    made: list[int] = []
    parse = MarkdownIt.parse

    def counted(self: MarkdownIt, src: str, env: dict[str, object] | None = None) -> list[Token]:
        tokens = parse(self, src, env)
        made.append(sum(map(_size, tokens)))
        return tokens

    monkeypatch.setattr(MarkdownIt, "parse", counted)
    return made


def _size(token: Token) -> int:
    return 1 + sum(map(_size, token.children or ()))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_formatting_has_a_ceiling(platform: str, name: str, read: list[int]) -> None:
    """Whatever the text, the parser makes no more tokens than the ceiling allows, and the answer goes out."""
    parts = PLATFORMS[platform](answer(HOSTILE[name]))
    assert parts
    assert sum(read) <= 6 * MOST_WEIGHT, f"{sum(read):,} tokens"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_twice_the_text_costs_no_more_than_twice(platform: str, read: list[int]) -> None:
    """The cost grows with the text: `# a` lines, which fill a message's entities long before its characters."""
    render = PLATFORMS[platform]
    render(answer("# a\n" * 2_000))
    once = sum(read)
    read.clear()
    render(answer("# a\n" * 4_000))
    assert sum(read) <= 2.2 * once


@pytest.mark.parametrize("platform", PLATFORMS)
def test_text_beyond_the_ceiling_is_shown_as_it_stands(platform: str) -> None:
    """A first part is formatted, the last ones are not, and nothing between them is missing."""
    render = PLATFORMS[platform]
    lines = [rf"**w{n}** \& \< \! \[ \] \_" for n in range(1, 2_000)]
    shown = "\n".join(part.plain for part in render(answer("\n\n".join(lines))))
    if platform == "page":  # one part of 60,000 characters is beyond it at once; the page reads Markdown itself
        assert shown.startswith("**w1**")
    else:
        assert shown.startswith("w1 & <")
    assert all(f"w{n}" in shown for n in range(1, 1_000))
    assert "\n**w" in f"\n{shown}"


def test_a_long_answer_of_the_usual_kind_is_formatted_to_its_end() -> None:
    """The ceiling is far above what people are answered: 40 full messages of notes with a list, links and code."""
    notes = "## What it does\n\nIt reads **every** page and keeps `what` [matters](https://a.example), in order.\n\n"
    text = (notes + "- one thing that was said at length, and more of it\n- another\n\n" + "words " * 60 + "\n\n") * 250
    assert len(text) > 100_000
    assert weight(text) < MOST_WEIGHT
    last = for_telegram(answer(text))[-1]
    assert "**" not in last.plain
    assert "**" not in render_plain(text)
