"""Answers as models write them beyond CommonMark, on every platform."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from channels.discord.render import render_markup as discord_markup
from channels.slack.render import render_markup as slack_markup
from channels.telegram.render import render_markup as telegram_markup
from gateway.text import render_plain
from tests.fakes.platform_cases import load_case

BOLD = load_case("30_render_cjk_bold")["render"]
BOLD_WORDS = [["「重点」"], ["注意："], ["“重要”", "「強調」"], ["굵게(강조)"]]
BESIDE = "\u200b"


@pytest.mark.parametrize(("markdown", "words"), list(zip(BOLD, BOLD_WORDS, strict=True)))
def test_bold_beside_chinese_japanese_and_korean_signs(markdown: str, words: list[str]) -> None:
    """The words between the stars are bold, and no star is shown."""
    telegram = telegram_markup(markdown)
    assert [telegram.text[each.offset : each.offset + each.length] for each in telegram.entities] == words
    assert {each.type for each in telegram.entities} == {"bold"}
    assert "*" not in telegram.text
    assert "*" not in render_plain(markdown)
    slack, discord = slack_markup(markdown).replace(BESIDE, ""), discord_markup(markdown)
    assert slack == markdown.replace("**", "*")
    assert discord == markdown


def test_addresses_in_tables_can_be_reached() -> None:
    """Each row has its link, or the address in words where a table stands in code."""
    (markdown,) = load_case("31_render_table_links")["render"]
    addresses = ["https://e.example/a.pdf", "https://e.example/b.pdf"]
    telegram = telegram_markup(markdown)
    assert [each.extra for each in telegram.entities if each.type == "text_link"] == addresses
    assert slack_markup(markdown).splitlines() == [
        "*Paper | Link*",
        "A | <https://e.example/a.pdf|pdf>",
        "B | <https://e.example/b.pdf|pdf>",
    ]
    for shown in (discord_markup(markdown), render_plain(markdown)):
        assert all(address in shown for address in addresses)


FORMULAS = ["$a_b*c*d$", "\\(x_1 \\cdot y\\)", "\\[ \\frac{a}{b} \\]", "$$x_1 * y_1$$"]


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize(
    "render", [render_plain, slack_markup, discord_markup, lambda text: telegram_markup(text).text]
)
def test_formulas_are_as_written(formula: str, render: Callable[[str], str]) -> None:
    """No sign of a formula is taken for a mark."""
    assert formula in render(f"The area is {formula}.")


def test_a_link_in_the_first_title_of_a_table_is_kept_on_telegram() -> None:
    """The column's title is left out of its rows, unless it has an address."""
    found = telegram_markup("| [h](https://h.example) | b |\n|-|-|\n| 1 | 2 |")
    assert found.text == "h\n\n1\nb: 2"
    assert "https://h.example" in str(found.entities)


def test_products_are_no_emphasis_and_money_is_no_formula() -> None:
    """Stars between digits or letters stay; a dollar before a number ends nothing."""
    products = ("(x+1)*(x+2)*(x+3)", "(a)*b*(c)", "10**3 and 2**8", "x**2 + y**2", "(a+b)**2*c")
    for text in ("2*3*4 = 24", "a*b*c", *products, "$5 and *not* $6".replace("*not*", "not")):
        assert telegram_markup(text).text == text
        assert render_plain(text) == text
    assert discord_markup("2*3*4 = 24") == "2\\*3\\*4 = 24"


def test_a_displayed_formula_of_several_lines_is_whole() -> None:
    """A line of it that begins like a list's item is none."""
    formula = "\\[\na = b\n- c\n\\]"
    assert render_plain(f"So:\n{formula}\nDone.") == f"So:\n\n{formula}\n\nDone."


@pytest.mark.parametrize(
    ("markdown", "plain"),
    [
        ("- a\n- b\nAfter", "• a\n• b\n\nAfter"),
        ("1. a\n   more\n2. b\nAfter", "1. a\n   more\n2. b\n\nAfter"),
        ("- a\n  - b\nAfter", "• a\n  • b\n\nAfter"),
        ("- [ ] a\n- [x] b", "• ☐ a\n• ☑ b"),
    ],
)
def test_lists_end_and_tasks_have_boxes(markdown: str, plain: str) -> None:
    """A line that is not indented stands behind the list; a task shows whether it is done."""
    assert render_plain(markdown) == plain
    assert telegram_markup(markdown).text == plain


@pytest.mark.parametrize("unit", ["$", "$a ", "\\(", "\\[\n", "**「", "2*", "$$", "- [ ] a\n", "\\(x"])
def test_no_text_takes_long(unit: str) -> None:
    """Up to the weight that is parsed, the rules cost no more than the parser does."""
    text = unit * (19_000 // len(unit))
    began = time.thread_time()
    render_plain(text)
    assert time.thread_time() - began < 3.0
