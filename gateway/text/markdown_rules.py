r"""The parser of answers: CommonMark with tables and strikethrough, and what models write beyond it.

Differences from CommonMark, each made in channels/web/page/markdown.js too:

- Marks beside Chinese, Japanese and Korean text need no blanks: such text has none (github.com/tats-u/
  markdown-cjk-friendly).
- A star between two letters, digits or brackets is a product: ``2*3*4``, ``(a)*(b)*c``. Two beside a digit are a power.
- Formulas (``$…$``, ``$$…$$``, ``\(…\)``, ``\[…\]``) are kept as written.
- A line that is not indented ends a list; CommonMark adds it to the last item.
"""

from __future__ import annotations

import re
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token

FORMULA_MARKUP = "formula"  # `markup` of an inline code token that is a formula
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u3130-\u318f\u31a0-\u31bf\u31f0-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)
# A dollar sign before a blank or a digit ends no formula: "$5 and $6" is money.
_FORMULA = re.compile(
    r"\\\((?:[^\\]|\\(?![()])){1,1000}?\\\)|\\\[(?:[^\\]|\\(?![\[\]])){1,1000}?\\\]"
    r"|\$\$[^$]{1,1000}\$\$|\$(?!\s)[^$\n`]{1,1000}(?<!\s)\$(?!\d)"
)
_DISPLAYED = {r"\[": r"\]", "$$": "$$"}
_FORMULA_LINES = 100


class _InlineState(StateInline):
    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:  # noqa: N802, N803 - the library's names
        """Return whether the run of marks at *start* can open and close, and its length."""
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        before = self.src[start - 1] if start > 0 else " "
        after = self.src[end] if end < self.posMax else " "
        if self.src[start] == "*" and _is_operator(before, scanned.length, after):
            return Scanned(False, False, scanned.length)
        if not canSplitWord or not (_CJK.match(before) or _CJK.match(after)):
            return scanned
        can_open = not _is_blank(after) and (not _is_foreign_punctuation(after) or _ends_word(before))
        can_close = not _is_blank(before) and (not _is_foreign_punctuation(before) or _ends_word(after))
        return Scanned(can_open, can_close, scanned.length)


def _is_operator(before: str, stars: int, after: str) -> bool:
    """Return True for the stars of a product or a power of what is *before* and *after* them."""
    if not (before.isascii() and after.isascii()):
        return False
    is_between = (before.isalnum() or before in ")]") and (after.isalnum() or after in "([")
    return is_between and (stars == 1 or (stars == 2 and (before.isdigit() or after.isdigit())))


def _is_blank(char: str) -> bool:
    return isWhiteSpace(ord(char))


def _is_punctuation(char: str) -> bool:
    return isMdAsciiPunct(ord(char)) or isPunctChar(char)


def _is_foreign_punctuation(char: str) -> bool:
    return _is_punctuation(char) and not _CJK.match(char)


def _ends_word(char: str) -> bool:
    return _is_blank(char) or _is_punctuation(char) or _CJK.match(char) is not None


class _InlineParser(ParserInline):
    def parse(self, src: str, md: MarkdownIt, env: Any, tokens: list[Token]) -> list[Token]:
        """Parse *src* with our own state."""
        state = _InlineState(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def _formula(state: StateInline, silent: bool) -> bool:
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        token = state.push("code_inline", "code", 0)
        token.markup, token.content = FORMULA_MARKUP, found[0]
    state.pos = found.end()
    return True


def _formula_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Keep a displayed formula of several lines, in which no line is an item of a list or a rule."""
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]].rstrip()
    closing = _DISPLAYED.get(first[:2])
    if closing is None or (len(first) > 2 and first.endswith(closing)):
        return False
    for line in range(start + 1, min(end, start + _FORMULA_LINES)):
        if state.isEmpty(line):
            return False
        if state.src[state.bMarks[line] : state.eMarks[line]].rstrip().endswith(closing):
            break
    else:
        return False
    if not silent:
        state.push("paragraph_open", "p", 1)
        token = state.push("inline", "", 0)
        token.content = state.getLines(start, line + 1, state.blkIndent, False).strip()
        token.children = []
        state.push("paragraph_close", "p", -1)
        state.line = line + 1
    return True


def _list_end(state: StateBlock, start: int, _: int, silent: bool) -> bool:
    """End the paragraph of a list's item before a line that is not indented as far."""
    return silent and 0 <= state.sCount[start] < state.blkIndent


def make_parser() -> MarkdownIt:
    """Return the parser."""
    parser = MarkdownIt()
    parser.inline = _InlineParser()
    parser.configure("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.block.ruler.before("list", "formula_block", _formula_block, {"alt": ["paragraph"]})
    parser.block.ruler.before("list", "list_end", _list_end, {"alt": ["paragraph"]})
    return parser
