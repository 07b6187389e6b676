"""Discord's dialect: what looks native there, what stays literal, and what never acts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord import render
from channels.discord.render import render_markup
from gateway.events import OutboundMessage, SessionKey

CASES = {
    "marks": ("*a* **b** ~~c~~ `d`", "*a* **b** ~~c~~ `d`"),
    "literal": ("2 * 3 snake_case ||x||", r"2 \* 3 snake\_case \|\|x\|\|"),
    "heading": ("# One\n\n#### Four", "# One\n\n**Four**"),
    "list": ("- a\n  - b\n- c", "- a\n  - b\n- c"),
    "numbers": ("3. a\n4. b", "3. a\n4. b"),
    "quote": ("> a\n> > b", "> a\n> \n> b"),
    "fence": ("```py\nx = 1\n```", "```py\nx = 1\n```"),
    "address": ("see https://a.example/b_c_d", "see https://a.example/b_c_d"),
    "link": ("[here](https://a.example)", "[here](<https://a.example>)"),
    "false link": ("[bank.example](https://evil.example)", "bank.example (https://evil.example)"),
    "script": ("[a](javascript:x)", r"[a\](javascript:x)"),
    "mention": ("<@42> <#7> <:e:1>", r"\<@42> \<#7> \<:e:1>"),
    "no heading": (r"\# no", r"\# no"),
    "table": ("| a | bb |\n|---|---|\n| 1 | 2 |", "```\na │ bb\n──┼───\n1 │ 2\n```"),
}


@pytest.mark.parametrize(("markdown", "written"), CASES.values(), ids=CASES.keys())
def test_markdown_becomes_discords(markdown: str, written: str) -> None:
    """Each construct as a person there would write it."""
    assert render_markup(markdown) == written


def test_a_fence_inside_code_does_not_end_it() -> None:
    """Three backticks in code stay in the code."""
    written = render_markup('~~~\nx = "```"\n~~~')
    assert written.count("```") == 2


@given(st.text(alphabet="ab*_~`|>#-[]()<@:\\\n \t1.", max_size=5_000))
def test_every_part_is_within_the_limit_and_leaves_room_for_a_mark(text: str) -> None:
    """Whatever escapes make of it."""
    parts = render.render(OutboundMessage(id="tabcdefghijklmnop.1", key=SessionKey("discord", "1"), text=text))
    assert all(0 < len(render.message_content(part)) <= render.LIMIT for part in parts)
    assert all(
        render.message_content(part, may_be_duplicate=True).endswith(part.payload or part.plain) for part in parts
    )
    assert all(
        render.matches_part(render.message_content(part, may_be_duplicate=True), part)
        for part in parts
        if part.plain.strip()
    )
