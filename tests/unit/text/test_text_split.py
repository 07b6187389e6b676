"""What a reader sees of a long answer: where it is cut, and that each part reads well by itself."""

from __future__ import annotations

import pytest

from gateway.i18n import translate
from gateway.text import LengthUnit, render_plain, sanitize, split, split_bounded, width

ONE = "word word word word."
CASES = [
    ("", 20, []),
    ("  \n\n \t\n", 20, []),
    ("short", 20, ["short"]),
    (f"{ONE}\n\n{ONE}", 30, [ONE, ONE]),
    (f"{ONE}\nmore\n\nnext one", 30, [f"{ONE}\nmore", "next one"]),
    (f"{ONE}\n{ONE}", 30, [ONE, ONE]),
    (f"{ONE} {ONE}", 30, [ONE, ONE]),
    ("word " * 8, 21, ["word word word word", "word word word word"]),
    ("x" * 45, 20, ["x" * 20, "x" * 20, "x" * 5]),
    ("In 2020. Then more and more", 20, ["In 2020. Then more", "and more"]),
    (f"{ONE}\n\n## Next\n\n{ONE}", 35, [ONE, f"## Next\n\n{ONE}"]),
    ("> quoted words that go on and on", 20, ["> quoted words that", "> go on and on"]),
    ("- first\n  - inner\n  - other\n    - deep\n- last", 27, ["- first\n  - inner\n  - other", "- deep\n- last"]),
    ("漢字が続く。漢字が続く。", 8, ["漢字が続く。", "漢字が続く。"]),
]


@pytest.mark.parametrize(("text", "limit", "parts"), CASES)
def test_cuts_where_a_reader_would(text: str, limit: int, parts: list[str]) -> None:
    """Paragraph before line before sentence before word; headings stay with their text, quotes stay quotes."""
    assert split(text, limit=limit) == parts


FENCES = [
    ("```py\nabcdefghij\nklmnopqrst\n```", ["```py\nabcdefghij\n```", "```py\nklmnopqrst\n```"], 20),
    ("~~~~ js x\nabcdefghi\njklmnopqr\n~~~~", ["~~~~ js x\nabcdefghi\n~~~~", "~~~~ js x\njklmnopqr\n~~~~"], 32),
    ("````md\n```\ninner\n```\nand more\n````", ["````md\n```\ninner\n```\n````", "````md\nand more\n````"], 28),
    ("> ```py\n> aaaaaaaa\n> bbbbbbbb\n> ```", ["> ```py\n> aaaaaaaa\n> ```", "> ```py\n> bbbbbbbb\n> ```"], 28),
    ("text before it\n\n```\ncode\n```", ["text before it", "```\ncode\n```"], 20),
    ("```\nnever closed\nat all", ["```\nnever closed\n```", "```\nat all\n```"], 20),
    ("```\n        indented\n        more\n```", ["```\n        indented\n```", "```\n        more\n```"], 26),
    ("no `` fence `` at all but words", ["no `` fence `` at", "all but words"], 18),
]


@pytest.mark.parametrize(("text", "parts", "limit"), FENCES)
def test_a_fence_is_a_fence_in_every_part(text: str, parts: list[str], limit: int) -> None:
    """A fence is closed and reopened with its marks, its length and its language, in quotes too."""
    assert split(text, limit=limit) == parts
    assert all(len(part) <= limit for part in parts)


def test_a_family_is_never_torn_apart() -> None:
    """Eleven code units of one emoji go together; counted as Telegram counts."""
    family = "👨‍👩‍👧‍👦"
    parts = split(family * 1000, limit=4096, unit=LengthUnit.UTF16)
    assert "".join(parts) == family * 1000
    assert all(len(part) % len(family) == 0 and width(part, LengthUnit.UTF16) <= 4096 for part in parts)


def test_a_cluster_longer_than_the_limit_is_cut_and_kept() -> None:
    """Ten thousand accents on one letter still arrive, in parts."""
    zalgo = "a" + "\u0301" * 10_000
    assert "".join(split(zalgo, limit=100)) == zalgo


@pytest.mark.parametrize("text", ["> " * 10_000 + "x", "- " * 10_000 + "x", "[" * 10_000, "`" * 100_000, "*" * 10_000])
def test_nesting_ends_nothing(text: str) -> None:
    """Ten thousand levels are split and read like anything else."""
    assert "".join(split(text, limit=4096)).replace(" ", "") == text.replace(" ", "")
    assert isinstance(render_plain(text[:10_000]), str)


def test_what_cannot_be_sent_is_made_sendable() -> None:
    """Halves of surrogate pairs meet or become U+FFFD, NUL and ESC go, line ends are one kind."""
    assert sanitize("a\0b\x1b\r\nc\rd\ud83d\ude00e\ud83df") == "ab\nc\nd😀e\ufffdf"


def test_an_endless_answer_ends_visibly() -> None:
    """Ten million characters are at most so many parts, and the last one says that it is cut."""
    parts = split_bounded("word " * 2_000_000, limit=4096, max_parts=5)
    assert len(parts) == 5
    assert parts[-1].endswith(translate("delivery.cut"))
    assert all(len(part) <= 4096 for part in parts)


def test_a_cut_inside_a_fence_still_closes_it_before_the_line() -> None:
    """The line that says so is not code."""
    *_, last = split_bounded("```py\n" + "print(1)\n" * 100 + "```", limit=100, max_parts=2, note="(cut)")
    assert last.startswith("```py\n")
    assert last.endswith("\n```\n\n(cut)")


PLAIN = [
    ("# Title\n\nSome **bold** and *soft* `code` ~~gone~~.", "Title\n\nSome bold and soft code gone."),
    ("- one\n- two\n  - inner\n\n3. three\n4. four", "• one\n• two\n  • inner\n\n3. three\n4. four"),
    ("> quoted\n> more\n\nnot", "> quoted\n> more\n\nnot"),
    (
        "[text](https://a.example) and [https://b.example](https://b.example)",
        "text (https://a.example) and https://b.example",
    ),
    ("```py\nx = List[int]\n```", "x = List[int]"),
    ("List<int> and <b>x</b>", "List<int> and <b>x</b>"),
    ("| a | b |\n|---|---|\n| 1 | 2 |", "a | b\n1 | 2"),
    ("![alt](https://i.example/x.png)", "alt (https://i.example/x.png)"),
    ("a\nb  \nc", "a\nb\nc"),
]  # fmt: skip


@pytest.mark.parametrize(("markdown", "text"), PLAIN)
def test_plain_text_reads_as_it_stands(markdown: str, text: str) -> None:
    """Without marks, with bullets and numbers, with where links lead, and with what looks like HTML."""
    assert render_plain(markdown) == text
