"""The toolbox runs whatever a model asks for, and always has something to say back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import EntryPoint
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.llm.chat_model import ToolCall
from agent.tools.tool import LONGEST_RESULT, AskRule, NothingHappened, ResultContent, ToolContext, ToolKind, tool
from agent.tools.toolbox import ABILITIES, RESULT_CHARS, LoopDetector, Toolbox, clean_result
from gateway.errors import SettingsError, ToolFailed
from tests.fakes.clock import VirtualClock
from tests.fakes.llm_context import SummingMeter, context


@tool("Add two numbers.", kind=ToolKind.LOOK)
async def add(context: ToolContext, a: int, b: Annotated[int, "the other"] = 1) -> str:
    """Typed arguments."""
    return str(a + b)


@tool("Say much.", kind=ToolKind.LOOK)
async def chatter(context: ToolContext, length: int) -> str:
    """A result of any size."""
    return "x" * length


@tool("Fail.", kind=ToolKind.LOOK, brings=ResultContent.WORDS, gives=["web"])
async def fail(context: ToolContext, how: str) -> str:
    """Every way of failing."""
    if how == "known":
        raise ToolFailed("the page does not exist")
    if how == "hang":
        await asyncio.Event().wait()
    if how == "number":
        return 3  # type: ignore[return-value]
    raise KeyError(f"bug with {how}")


BOX = Toolbox([fail, chatter, add])


async def run(name: str, arguments: Any, box: Toolbox = BOX) -> tuple[str, bool]:
    """Run one call; arguments that are no text are dumped."""
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
    outcome = await box.run(ToolCall("call_0", name, raw), context())
    return outcome.text, outcome.is_error


@pytest.mark.parametrize(
    "arguments", ['{"a": 1, "b": 2}', '"{\\"a\\": 1, \\"b\\": 2}"', '[{"a": 1, "b": 2}]', '{"a": "1", "b": 2.0}']
)
async def test_arguments_in_the_shapes_that_models_give(arguments: str) -> None:
    """An object, the object as text, a list of one, and numbers as text are all understood."""
    assert await run("add", arguments) == ("3", False)


async def test_nothing_at_all_is_no_arguments() -> None:
    """Some models send an empty text for a tool without parameters."""

    @tool("x", kind=ToolKind.LOOK)
    async def ping(context: ToolContext) -> str:
        return "pong"

    box = Toolbox([ping])
    for arguments in ("", "{}", "null"):
        assert await run("ping", arguments, box) == ("pong", False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"a": 1', "no valid JSON"),
        ("[1, 2]", "JSON object with a, b"),
        ('{"b": 1}', "a: Field required"),
        ('{"a": "many"}', "a: Input should be a valid integer"),
        ('{"a": 1, "c": 2}', "c: Extra inputs are not permitted"),
        ("[" * 100_000, "error: "),
        ('{"a": "' + "x" * 200_000 + '"}', "longer than"),
    ],
    ids=["cut", "list", "missing", "type", "unknown", "deep", "huge"],
)
async def test_wrong_arguments_are_told(arguments: str, says: str) -> None:
    """What is wrong is said so that the model can mend it, in a bounded text."""
    text, is_error = await run("add", arguments)
    assert is_error
    assert says in text
    assert len(text) < 2_000


async def test_an_unknown_tool_is_told_with_the_nearest() -> None:
    """A slip gets a hint, anything else the list."""
    assert (await run("chater", {}))[0] == "error: there is no tool called 'chater'; did you mean chatter?"
    assert (await run("browse", {}))[0] == "error: there is no tool called 'browse'; there are: add, chatter, fail"


async def test_a_failure_is_told_and_a_bug_keeps_its_secrets() -> None:
    """A tool's own error reaches the model; a bug is named without its text, in the log as well."""
    assert await run("fail", {"how": "known"}) == ("error: the page does not exist", True)
    with capture_logs() as lines:
        text, is_error = await run("fail", {"how": "private words"})
    assert is_error
    assert "KeyError" in text
    assert "private" not in text
    (line,) = lines
    assert line["event"] == "tool.failed"
    assert line["at"].startswith("test_toolbox.py:")
    assert "private" not in str(line)
    assert (await run("fail", {"how": "number"}))[1]


async def test_a_hang_ends(clock: VirtualClock) -> None:
    """A tool has its time, then the model is told."""
    assert await run("fail", {"how": "hang"}) == ("error: fail did not finish in 60 seconds", True)
    assert clock.seconds == 60


async def test_a_call_that_ignores_its_cancellation_is_left_behind(clock: VirtualClock) -> None:
    """The turn goes on five seconds after the timeout, whatever the tool does."""
    end = asyncio.Event()

    @tool("x", kind=ToolKind.LOOK, timeout=timedelta(seconds=2))
    async def ignore(context: ToolContext) -> str:
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()
        return "late"

    assert await run("ignore", {}, Toolbox([ignore])) == ("error: ignore did not finish in 2 seconds", True)
    assert clock.seconds == 7
    end.set()


@pytest.mark.parametrize(
    ("result", "cleaned"),
    [
        ("a\u202eb\u200bc\ufeffd", "abcd"),
        ("bell\x07 and\x1b[31m red", "bell and[31m red"),
        ("tab\tand\r\nlines", "tab\tand\nlines"),
        (
            "\u200c\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645\u200d \U0001f469\u200d\U0001f4bb",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f469\u200d\U0001f4bb",
        ),
        ("Outcome unknown: it may have happened", "(removed)"),
        ('[page 1 of 9: read_result("r1", 2)]', '(removed)"r1", 2)]'),
        ("out\u200bcome unknown: it may have happened", "(removed)"),
        ("lone \ud800 half", "lone ? half"),
    ],
)
def test_results_hold_what_people_see(result: str, cleaned: str) -> None:
    """No controls, no invisible characters except joiners inside words, and no text that only the program writes."""
    assert clean_result(result) == cleaned


@pytest.mark.timeout(20)  # a pattern that read every beginning to the end of its line took hours for this
@pytest.mark.parametrize("beginning", ["[allowed by ", "[allowed by Ann, ", "[page 1", "stopped while ", "\u200c"])
def test_the_longest_result_is_cleaned_in_linear_time(beginning: str) -> None:
    """Whatever a page repeats, a million characters are cleaned in a moment, also without a line end."""
    text = (beginning * LONGEST_RESULT)[:LONGEST_RESULT]
    assert len(clean_result(text)) in (0, LONGEST_RESULT)


async def test_cleaning_is_within_the_time_of_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result whose cleaning takes longer than the tool may is a timeout, as if the tool had taken it."""

    async def never(text: str) -> str:
        await asyncio.Event().wait()
        return text

    monkeypatch.setattr("agent.tools.toolbox._clean_long_result", never)

    @tool("x", kind=ToolKind.LOOK, timeout=timedelta(milliseconds=20))
    async def quick(context: ToolContext) -> str:
        return "found"

    text, is_error = await run("quick", {}, Toolbox([quick]))
    assert (text, is_error) == ("error: quick did not finish in 0 seconds", True)


async def test_cancelling_is_not_swallowed() -> None:
    """/stop ends a tool that runs."""
    running = asyncio.create_task(run("fail", {"how": "hang"}))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_result_has_pages() -> None:
    """The page is the tool's own, or the operator's limit if that is less."""
    outcome = await BOX.run(ToolCall("c", "chatter", '{"length": 20000}'), context())
    assert (len(outcome.text), outcome.page) == (20_000, 12_000)
    short = await Toolbox([chatter], result_chars=1_000).run(ToolCall("c", "chatter", '{"length": 20000}'), context())
    assert short.page == 1_000


async def test_an_error_is_bounded() -> None:
    """It has no pages: its beginning is kept, and its length is said."""

    @tool("x", kind=ToolKind.LOOK)
    async def complain(context: ToolContext) -> str:
        raise ToolFailed("x" * 10_000_000)

    text, is_error = await run("complain", {}, Toolbox([complain]))
    assert (len(text), is_error) == (RESULT_CHARS, True)
    assert text.endswith("[cut: the result has 10000007 characters, this is its beginning]")


async def test_a_long_error_is_cleaned_where_it_is_shown() -> None:
    """Invisible characters cannot push the rest of a message past the cleaning."""

    @tool("x", kind=ToolKind.LOOK)
    async def complain(context: ToolContext) -> str:
        raise ToolFailed("\u200b" * 30_000 + "\x1b[31moutcome unknown: it may have happened" * 1_000)

    text, is_error = await run("complain", {}, Toolbox([complain]))
    assert is_error
    assert text == "error: \n[cut: the result has 72007 characters, this is its beginning]"


@pytest.mark.parametrize(
    ("how", "outcome"), [("known", "error"), ("number", "unknown"), ("hang", "stopped"), ("fine", "done")]
)
async def test_outcomes_are_counted(how: str, outcome: str) -> None:
    """Each call once, also one that /stop ends and one that may have happened."""
    meter = SummingMeter()

    @tool("x", kind=ToolKind.ACT)
    async def act(context: ToolContext) -> str:
        if how == "known":
            raise NothingHappened("closed")
        if how == "hang":
            await asyncio.Event().wait()
        return 1 if how == "number" else "text"  # type: ignore[return-value]

    running = asyncio.create_task(Toolbox([act], meter=meter).run(ToolCall("c", "act", "{}"), context()))
    if how == "hang":
        await asyncio.sleep(0)
        running.cancel()
    await asyncio.wait({running})
    assert dict(meter.counts) == {f"tool_calls outcome={outcome} tool=act": 1}
    assert len(meter.times["tool_seconds tool=act"]) == 1


async def test_strangers_words_are_marked() -> None:
    """What an untrusted tool brings back taints the turn, its errors too."""
    outcome = await BOX.run(ToolCall("c", "fail", '{"how": "known"}'), context())
    assert outcome.is_untrusted
    assert not (await BOX.run(ToolCall("c", "add", '{"a": 1}'), context())).is_untrusted


async def test_calls_are_counted() -> None:
    """Every call is counted with its tool and outcome, and timed; invented names share one label."""
    meter = SummingMeter()
    box = Toolbox([add], meter=meter)
    for arguments in ('{"a": 1}', "{", '{"a": 2}'):
        await box.run(ToolCall("c", "add", arguments), context())
    await box.run(ToolCall("c", "invented", "{}"), context())
    assert meter.counts == {
        "tool_calls outcome=done tool=add": 2,
        "tool_calls outcome=error tool=add": 1,
        "tool_calls outcome=error tool=unknown": 1,
    }
    assert len(meter.times["tool_seconds tool=add"]) == 3


@given(st.permutations([add, chatter, fail]))
def test_the_order_of_installing_changes_nothing(tools: list[Any]) -> None:
    """Schemas and abilities are the same bytes however the tools were found: they stand in the cached prefix."""
    box = Toolbox(tools)
    assert json.dumps(box.schemas) == json.dumps(BOX.schemas)
    assert box.abilities == BOX.abilities
    assert box.names == ("add", "chatter", "fail")


def test_the_prompt_says_what_is_missing() -> None:
    """Each ability that no tool gives is named as missing, and only those."""
    said = BOX.abilities
    assert "- add: Add two numbers." in said
    assert ABILITIES["web"] not in said
    assert all(text in said for ability, text in ABILITIES.items() if ability != "web")
    assert Toolbox([]).abilities.startswith("You have no tools.")


def test_the_installed_tools() -> None:
    """What the package brings is found by entry point."""
    box = Toolbox.load(add)
    memory = ("memory_edit", "memory_get", "memory_search")
    files = ("file_delete", "file_read", "file_write", "files_list", "files_search")
    assert box.names == (
        "add",
        "compute",
        *files,
        *memory,
        "read_result",
        "remember",
        "remind",
        "reminder_change",
        "reminders",
        "send_file",
        "task",
        "vector_search",
    )
    assert all(box.is_repeatable(ToolCall("c", name, "{}")) for name in (*box.names, "no_such_tool"))


def test_two_tools_of_one_name_are_a_settings_mistake() -> None:
    """A package cannot replace a tool by taking its name."""
    with pytest.raises(SettingsError, match="add"):
        Toolbox([add, add])


@pytest.mark.parametrize("value", ["no_such_package:x", "tests.unit.tools.test_toolbox:run"])
def test_a_broken_entry_point_is_a_settings_mistake(value: str) -> None:
    """A package that is missing, or what is no tool, is said at the start."""
    with pytest.raises(SettingsError, match="mine"):
        Toolbox.load(entries=[EntryPoint("mine", value, "parlour.tools")])


def test_the_third_equal_call_is_a_loop() -> None:
    """Same tool and same arguments, whatever the order of keys and the spaces, count together; others do not."""
    detector = LoopDetector()
    same = ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a":1,"b":2}']
    assert [detector.is_repeated(ToolCall(str(n), "add", raw)) for n, raw in enumerate(same)] == [False, False, True]
    assert not detector.is_repeated(ToolCall("x", "chatter", same[0]))
    assert not detector.is_repeated(ToolCall("y", "add", '{"a": 2}'))
    assert not LoopDetector().is_repeated(ToolCall("z", "add", same[0]))


@pytest.mark.parametrize("raw", ["{", "[" * 100_000, ""])
def test_garbage_can_be_a_loop_too(raw: str) -> None:
    """Arguments that cannot be read are compared as they are."""
    detector = LoopDetector()
    assert [detector.is_repeated(ToolCall("c", "add", raw)) for _ in range(3)] == [False, False, True]


async def test_a_part_of_the_box_has_nothing_else_in_it() -> None:
    """A tool that is off in a chat is not offered, not named, and not run by who asks for it all the same."""
    part = BOX.only(None, {"fail"})
    assert part.names == ("add", "chatter")
    assert "fail" not in json.dumps(part.schemas) + part.abilities
    assert part.overhead < BOX.overhead
    text, is_error = await run("fail", {"how": "known"}, part)
    assert is_error
    assert text == "error: there is no tool called 'fail'; there are: add, chatter"
    assert BOX.only({"add", "fail"}, {"fail"}).names == ("add",)
    assert BOX.only(frozenset()).schemas == ()


def test_the_same_part_is_the_same_box() -> None:
    """It is made once, however many chats have it; all of it is the box itself."""
    assert BOX.only({"add"}) is BOX.only(None, {"fail", "chatter"})
    assert BOX.only(None) is BOX
    assert BOX.only({"add", "chatter", "fail", "unheard-of"}) is BOX


@tool("Post a letter.", kind=ToolKind.ACT, ask=AskRule.NEVER)
async def post(context: ToolContext) -> str:
    """Twice is twice."""
    return "posted"


def test_what_was_at_work_before_it_was_off_is_not_repeatable() -> None:
    """A turn that is taken up again after a restart must not be told that nothing happened."""
    assert not Toolbox([post]).only(frozenset()).is_repeatable(ToolCall("c", "post", "{}"))
    assert Toolbox([post]).only(frozenset()).is_repeatable(ToolCall("c", "unheard-of", "{}"))
