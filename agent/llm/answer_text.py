"""The words of an answer as they arrive: without thinking, up to a call written as text, not repeated for ever.

A model writes calls as text if its server does not know the form that it was trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from agent.llm.chat_model import ToolCall, WrittenCalls

# A model's thinking where its server leaves it in the text: most models, Magistral, Kimi.
_THINKING = r"(?:[a-z]{1,8}:)?(?:think|thinking|thoughts?|reasoning)\s?>"
_OPENING = rf"<{_THINKING}|\[THINK\]|◁think▷|<\|START_THINKING\|>|<\|begin_of_thought\|>|<\|channel>"
_CLOSINGS = rf"</{_THINKING}|\[/THINK\]|◁/think▷|<\|END_THINKING\|>|<\|end_of_thought\|>|<channel\|>|final<\|message\|>"
# gpt-oss's header of a message: thinking, unless it is called final.
_HEADER = r"<\|channel\|>|<\|start\|>"
# The same from a server that has removed the special tokens: the names of two messages run into their words.
_STRIPPED_NAME = "analysis"
_STRIPPED = re.compile(r"analysis.*?assistant(?:final(?P<answer>.*)|(?P<call>commentary to=functions\..*))", re.DOTALL)
_AROUND = r"<\|(?:START|END)_RESPONSE\|>|<\|(?:begin|end)_of_solution\|>"  # an answer: Cohere's and Sky-T1's
# Ends of messages that a server did not know as such.
_END_MARKS = re.compile(
    r"(?<!\s)(?:\s*(?:<\|(?:im_end|end|return|eot_id|eom_id|end_of_text|endoftext|end_of_turn|user|observation)\|>|</s>"
    r"|<end_of_turn>|<turn\|>|<｜end▁of▁sentence｜>))+\s*\Z"
)
# What begins a tool call that a model writes into its answer: Hermes and Qwen, Mistral, Llama, Kimi, DeepSeek, MiniMax.
_CALL = (
    r"<(?:[a-z]{1,10}:)?(?:tool_?calls?|function_?calls?|tool_use)>|<function=|<(?:[a-z]{1,10}:)?invoke name="
    r"|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_calls?(?:_section)?(?:_begin)?\|?>|<\|START_ACTION\|>"
    r"|<[|｜](?:DSML|tool[▁_]calls?[▁_]begin)[|｜]"
)
_TOKEN = re.compile(
    r"(?=[<\[◁`~\nf])"  # the first characters of all of them: a text has few places to look at
    rf"(?:(?P<close>{_CLOSINGS})|(?P<open>{_OPENING})|(?P<header>{_HEADER})|(?P<around>{_AROUND})|(?P<call>{_CALL})"
    r"|(?P<tick>`+|~~~+)|(?P<line>\n))",
    re.IGNORECASE,
)
_CLOSING = re.compile(_CLOSINGS, re.IGNORECASE)
_SPECIAL = re.compile(r"[<\[◁`~\n]")
_ENDED = re.compile(r"[>\]▷\n]")
_LONGEST_TAG = 32  # characters: what may begin a tag waits for the rest
# A call without a mark around it: an object that begins with the name of a tool, also in a list or a code block.
BARE_CALL = re.compile(
    r'(?:```\w{0,10}+\s*+)?\[?\s*+\{\s*+"(?:(?:name|function|tool|tool_name)"\s*:|type"\s*:\s*"function"|tool_calls"\s*:)'
)
_BARE_START = re.compile(r"(?:```\w{0,10}+\s*+)?\[?\s*+\{")
_LONGEST_FENCED = 1_000  # characters of a code block that may be such a call; a longer one is one for people
_LONGEST_START = 40  # characters of what may begin such a call

_BLOCK = 200  # characters
_COPIES = 8  # as many times in a row they end the answer


class AnswerText:
    """The words of one answer, from pieces of any size; each character is looked at a bounded number of times."""

    def __init__(self, *, is_hidden: bool = False, is_harmony: bool = False) -> None:
        """*is_hidden*: the model is known to end thinking that it never begins, so nothing is shown before that.

        *is_harmony*: the model is a gpt-oss, whose server may leave the names of its messages in the text.
        """
        self._is_harmony = is_harmony
        self._text = ""
        self._new: list[str] = []  # behind `_text`, joined when somebody asks for it
        self._length = 0
        self._held = ""  # the last characters, which may begin a tag
        self._is_hidden = is_hidden
        self._is_closed = False
        self._is_thinking = False
        self._has_thought = False
        self._dropped = ""  # what stood before a tag that ended thinking a second time
        self._fence = ""  # of the code block that is open
        self._ticks = 0  # of the code span that is open on this line
        self._is_line_start = True
        self._checked_at = _COPIES * _BLOCK
        self.call_at: int | None = None  # where a tool call begins that is written as text
        self.is_repeated = False  # and shortened to one copy
        self.ended_unopened = False  # thinking was ended that had not begun

    def __len__(self) -> int:
        return self._length

    @property
    def text(self) -> str:
        """The words without the thinking. A possible beginning of a tag is held back."""
        if self._new:
            self._text = "".join((self._text, *self._new))
            self._new = []
        return self._text

    @property
    def visible_text(self) -> str:
        """The part that the preview may show: without thinking and without a call written as text."""
        if self._is_hidden:
            return ""
        text = self.text if self.call_at is None else self.text[: self.call_at]
        text = _without_end_mark(text)
        if self._is_harmony and not self._is_closed and _may_be_stripped(text):
            found = _STRIPPED.match(text)
            return "" if found is None else found["answer"] or ""
        if text[:1] not in ("{", "[", "`"):
            return text
        is_start = not self._is_closed and len(text) < _LONGEST_START and _BARE_START.match(text)
        is_call = BARE_CALL.match(text) and (text[0] != "`" or len(text) < _LONGEST_FENCED)
        return "" if is_start or is_call else text

    def add(self, piece: str) -> bool:
        """Take the next characters; True when the text grew."""
        if self.is_repeated:
            return False
        before = self._length
        if not self._held and not self._is_thinking and not _SPECIAL.search(piece):
            self._keep(piece)
        else:
            self._scan(self._held + piece)
        if self._length >= self._checked_at:
            self._find_repetition()
        return self._length > before

    def close(self) -> None:
        """Take the end of the answer."""
        held, self._held = self._held, ""
        if not self._is_thinking:
            self._keep(held)
        if self._dropped and not self.text.strip():
            self._replace(self._dropped)  # nothing followed: the tag was a stray one
        if self._is_harmony and _may_be_stripped(self.text) and (found := _STRIPPED.match(self.text)):
            self._replace(found["answer"] or found["call"] or "")
            self.call_at = 0 if found["call"] else None
        self._is_hidden, self._is_closed = False, True
        if (text := _without_end_mark(self.text)) != self.text:
            self._replace(text)

    def _scan(self, text: str) -> None:
        at, self._held = 0, ""
        while at < len(text):
            if self._is_thinking:
                end = _CLOSING.search(text, at)
                if end is None:
                    self._held = text[max(at, len(text) - _LONGEST_TAG) :]
                    return
                self._is_thinking, self._has_thought, at = False, True, end.end()
                continue
            found = _TOKEN.search(text, at)
            if found is None:
                begins = _unfinished(text, at)
                self._keep(text[at:begins])
                self._held = text[begins:]
                return
            if found.end() == len(text) and found["tick"]:  # the rest of the run may be in the next piece
                self._keep(text[at : found.start()])
                self._held = text[found.start() :]
                return
            self._keep(text[at : found.start()])
            self._take(found)
            at = found.end()

    def _take(self, token: re.Match[str]) -> None:
        word = token[0]
        if token["line"]:
            self._keep(word)
            self._ticks, self._is_line_start = 0, True
        elif token["tick"]:
            self._take_ticks(word)
        elif self._fence or self._ticks:
            self._keep(word)
        elif token["open"] or (token["header"] and (not self._length or word[2] == "s")):
            self._is_thinking = True
        elif token["around"]:
            return
        elif token["header"]:
            self._keep(word)
        elif token["close"]:
            self._end_unopened()
        else:
            self.call_at = self._length if self.call_at is None else self.call_at
            self._keep(word)

    def _take_ticks(self, run: str) -> None:
        if self._is_line_start and len(run) >= 3 and not self._fence:
            self._fence = run
        elif self._is_line_start and self._fence and run.startswith(self._fence):
            self._fence = ""
        elif not self._fence and run[0] == "`":
            self._ticks = 0 if self._ticks == len(run) else self._ticks or len(run)
        self._keep(run)

    def _end_unopened(self) -> None:
        self._dropped = self.text if self._has_thought else ""
        self._replace("")
        self._fence, self._ticks, self.call_at = "", 0, None
        self._is_hidden, self._has_thought, self.ended_unopened = False, True, True

    def _keep(self, words: str) -> None:
        if not self._length and self._has_thought:
            words = words.lstrip()  # between the thinking and the answer
        if words:
            self._new.append(words)
            self._length += len(words)
            self._is_line_start = self._is_line_start and words.isspace()

    def _replace(self, text: str) -> None:
        self._text, self._new, self._length = text, [], len(text)

    def _find_repetition(self) -> None:
        """Look for a block of 200 characters that ends the text eight times in a row, whatever their distance.

        The whole text is searched each time that it grew by a sixteenth.
        """
        text = self.text
        self._checked_at = len(text) + max(_BLOCK, len(text) // 16)
        period = len(text) - _BLOCK - text.rfind(text[-_BLOCK:], 0, len(text) - 1)
        needed = max(_COPIES * _BLOCK, (_COPIES - 1) * period + _BLOCK)
        if needed > len(text) or text[-needed:-period] != text[period - needed :]:
            return
        start = len(text) - needed
        while start and text[start - 1] == text[start - 1 + period]:
            start -= 1
        self.is_repeated = True
        self._held = ""
        self._replace(text[: start + period].rstrip())


def _may_be_stripped(text: str) -> bool:
    """Return True if *text* begins, or may begin, with the name of gpt-oss's thinking, which no space follows."""
    after = text[len(_STRIPPED_NAME) : len(_STRIPPED_NAME) + 1]
    is_word = after.isspace() or after.islower() or (after != "" and after in ".,:;-*")
    return _STRIPPED_NAME.startswith(text[: len(_STRIPPED_NAME)]) and not is_word


def _without_end_mark(text: str) -> str:
    if not text.endswith((">", "\n")):
        return text
    start = max(len(text) - 2 * _LONGEST_TAG, 0)
    found = _END_MARKS.search(text, start)
    return text if found is None or (found[0].strip() == "</s>" and "<s>" in text) else text[: found.start()]


def _unfinished(text: str, at: int) -> int:
    """Return where a tag begins whose end is not there yet, or the length of *text*."""
    begins = max(text.rfind("<", at), text.rfind("[", at), text.rfind("◁", at))
    is_open = begins >= 0 and len(text) - begins < _LONGEST_TAG and _ENDED.search(text, begins + 1) is None
    return begins if is_open else len(text)


# -- calls written as text -------------------------------------------------------------------------

_MOST = 8  # calls of one answer
_MOST_CHARS = 20_000  # of an answer with calls in it; a longer one is not read
# Marks in and around calls: special tokens, and tags with nothing in them but a name.
_MARKS = re.compile(
    r"</?(?:[a-z]{1,10}:)?(?:tool_?calls?|function_?calls?|tool_use|function|invoke|parameter|tools)>|\[/?TOOL_CALLS\]"
    r"|\[ARGS\]"
    r"|<[|｜][^<>|｜]{1,40}[|｜]>|```(?:json)?",
    re.IGNORECASE,
)
_NAME = r"[\"']?([\w.-]{1,64})[\"']?"
_NAMED = re.compile(
    rf"(?:<function=|<(?:[a-z]{{1,10}}:)?invoke name=|\[TOOL_CALLS\]){_NAME}(?:>|\[ARGS\]|(?=\{{))", re.IGNORECASE
)
_PARAMETER = re.compile(
    r"<parameter(?:=| name=)[\"']?([\w.-]{1,64})[\"']?[^<>]{0,40}>\n?(.*?)\n?</parameter>", re.DOTALL
)
# What follows a mark of a call, if it is not a word about the mark: an object, a tag, or the name of a tool alone.
_STARTS = re.compile(r"\s*(?:[\[{<]|\Z|\w[\w-]{0,63}(?:[<({]|[ \t]*(?:\n|\Z)))")
# Calls as code: Llama 4, OLMo, Gemma.
_CODE = re.compile(r"(?:```\w{0,10}+\s*+)?(?:print\()?\[?\s*+(\w{1,64})\([^\n]*\)\]?\s*+(?:```)?\s*+", re.ASCII)
_DECODER = json.JSONDecoder()


def find_written_calls(
    text: str, call_at: int | None, is_tool: Callable[[str], bool], *, is_expected: bool
) -> WrittenCalls | None:
    """Return the tool calls in *text*, which begin at *call_at*, or None if these are words.

    Without a mark it is a call only if all of the text is an object with a name of which *is_tool* is True.
    *is_expected*: the model wrote its calls so when it was tried.
    """
    if call_at is None:
        if (code := _CODE.fullmatch(text.strip()[:_MOST_CHARS])) is not None and is_tool(code[1]):
            return WrittenCalls((), is_whole=False, is_expected=is_expected)
        if BARE_CALL.match(text.lstrip()) is None or len(text) > _MOST_CHARS:
            return None
        calls, rest = _read(text)
        if not calls or rest.strip() or not all(is_tool(call.name) for call in calls):
            return None
        return WrittenCalls(calls, is_whole=True, is_expected=is_expected)
    tail = text[call_at:]
    mark = _MARKS.match(tail)
    if mark is not None and mark[0].startswith("<") and not _STARTS.match(tail, mark.end()) and "|" not in mark[0]:
        return None  # words about the mark
    calls, rest = _read(tail) if len(tail) <= _MOST_CHARS else ((), tail)
    is_whole = bool(calls) and not text[:call_at].strip() and not rest.strip()
    return WrittenCalls(calls, is_whole=is_whole, is_expected=is_expected)


def _read(text: str) -> tuple[tuple[ToolCall, ...], str]:
    """Return the calls in *text*, and what is left of it without them and their marks."""
    calls: list[ToolCall] = []
    rest: list[str] = []
    at = 0
    while at < len(text) and len(calls) <= _MOST:
        if (named := _NAMED.match(text, at)) is not None:
            found, end = _arguments(text, named.end())
            if found is not None:
                calls.append(ToolCall("", named[1], found))
                at = end
                continue
        mark = _MARKS.match(text, at)
        if mark is None and text[at] in "{[":
            if (read := _objects(text, at)) is None:
                return tuple(calls), text[at:]  # no second try inside of it: each costs as much as it is long
            calls += read[0]
            at = read[1]
            continue
        if mark is None:
            rest.append(text[at])
        at = mark.end() if mark is not None else at + 1
    return tuple(calls[:_MOST]), "".join(rest)


def _arguments(text: str, at: int) -> tuple[str | None, int]:
    """Return the arguments behind a name, as JSON, and where they end."""
    start = at + len(text[at:]) - len(text[at:].lstrip())
    if text[start : start + 1] == "{":
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return None, at
        return json.dumps(found, ensure_ascii=False), end
    values: dict[str, str] = {}
    while (parameter := _PARAMETER.match(text, start)) is not None:
        values[parameter[1]] = parameter[2]
        start = parameter.end()
        start += len(text[start:]) - len(text[start:].lstrip())
    return (json.dumps(values, ensure_ascii=False), start) if values else (None, at)


def _objects(text: str, at: int) -> tuple[list[ToolCall], int] | None:
    try:
        found, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    if isinstance(found, Mapping) and isinstance(found.get("tool_calls"), list):
        found = found["tool_calls"]
    calls = [_call_of(each) for each in (found if isinstance(found, list) else [found])]
    known = [each for each in calls if each is not None]
    return (known, end) if known and len(known) == len(calls) else None


def _call_of(value: Any) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    inner = value.get("function")
    source = inner if isinstance(inner, Mapping) else value
    name = next(
        (found for key in ("name", "tool_name", "tool", "function") if isinstance(found := source.get(key), str)), ""
    )
    arguments: Any = next((source[key] for key in ("arguments", "parameters", "args", "input") if key in source), {})
    if isinstance(arguments, str):
        return ToolCall("", name, arguments) if name else None
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False)) if name else None
