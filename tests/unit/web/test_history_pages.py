"""Pages of a history: bounded, and together the whole of it."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from channels.web import frame_codec
from channels.web.windows import HistoryPage, HistoryPager, SharedFrame, cut_page
from gateway.events import AnswerSource, Attachment, SessionKey
from gateway.ports.channel import DisplayedMessage, DisplayedPage, SessionInfo
from gateway.text import sanitize
from tests.fakes.clock import EPOCH

KEY = SessionKey("web", "owner")
LIMIT = 40_000  # bytes
SOURCE = AnswerSource("https://example.org/" + "a" * 500, "title")
FILE = Attachment(kind="document", name="a.txt", size=1, blob="people/ann/x")


def frame_of(_: SessionKey, page: HistoryPage, before: str) -> SharedFrame:
    """Return a page as its frame."""
    return SharedFrame(frame_codec.history(page.lines, lambda _: {}, before=page.before, is_earlier=bool(before)))


@st.composite
def histories(draw: st.DrawFn) -> list[DisplayedMessage]:
    """Draw a history whose lines are short, long, and longer than a page."""
    texts = st.builds(lambda text, times: text * times, st.text(max_size=30), st.sampled_from([1, 40, 2_000]))
    lines = draw(
        st.lists(st.tuples(st.sampled_from(["user", "assistant", "command"]), texts, st.booleans()), max_size=9)
    )
    return [
        DisplayedMessage(
            id=f"t{n}/0",
            turn=f"t{n}",
            role=role,
            text=text,
            typed=text,
            at=EPOCH,
            attachments=(FILE,) if has_file else (),
            sources=(SOURCE,) * 8 if has_file else (),
        )
        for n, (role, text, has_file) in enumerate(lines)
    ]


@given(histories())
def test_pages_are_bounded_and_make_up_the_history(lines: list[DisplayedMessage]) -> None:
    """Page by page, each within its bytes: every line once, in order, with its words and its files."""
    pages: list[HistoryPage] = []
    before = ""
    while True:
        page = cut_page(lines, before=before, limit=LIMIT)
        assert page is not None
        assert len(frame_of(KEY, page, before).encoded().encode()) <= LIMIT
        pages.insert(0, page)
        if not page.before:
            break
        before = page.before
    got = [line for page in pages for line in page.lines]
    assert len({line.id for line in got}) == len(got)
    for line in lines:
        pieces = [each for each in got if each.turn == line.turn]
        assert [each.attachments for each in pieces] == [()] * (len(pieces) - 1) + [line.attachments]
        assert [each.sources for each in pieces] == [()] * (len(pieces) - 1) + [line.sources]
        if line.role == "user":
            assert "".join(each.text for each in pieces) == sanitize(line.text)
        if len(line.text) < LIMIT // 8:
            assert [each.text for each in pieces] == [sanitize(line.text)]


class HeldSessions:
    """Sessions whose reading waits, and that say how often they were read, and by how many at once."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.reads = self.busy = self.most = 0

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return nothing; windows ask for pages."""
        return ()

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Wait and return nothing."""
        self.reads += 1
        self.busy += 1
        self.most = max(self.most, self.busy)
        await self.go_on.wait()
        self.busy -= 1
        return DisplayedPage(())

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return no overview."""
        return ()


def reader(sessions: HeldSessions, slept: list[float]) -> HistoryPager:
    """Return a reader whose clock stands still and whose pauses are noted."""

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    return HistoryPager(sessions, frame_of, lambda _: "en", clock=lambda: 0.0, sleep=sleep)


async def test_one_chats_readings_are_paced_and_another_chats_are_not() -> None:
    """A window that asks without end gets one page a second once its burst is used up; nobody else waits."""
    sessions, slept = HeldSessions(), list[float]()
    sessions.go_on.set()
    history = reader(sessions, slept)
    for _ in range(22):
        await history.read(KEY)
    assert slept == [1.0, 2.0]
    await history.read(SessionKey("web", "ann"))
    assert len(slept) == 2


async def test_few_histories_are_in_memory_at_once() -> None:
    """Fifty chats open at once: a handful is read at a time; what nobody reads any more is let go of."""
    sessions = HeldSessions()
    history = reader(sessions, [])
    async with asyncio.TaskGroup() as tasks:
        for n in range(50):
            tasks.create_task(history.read(SessionKey("web", f"person-{n}")))
        for _ in range(10):
            await asyncio.sleep(0)
        sessions.go_on.set()
    assert (sessions.reads, sessions.most) == (50, 4)


async def test_a_reading_that_is_given_up_is_done_by_the_next_who_waits() -> None:
    """The window that reads for the others closes meanwhile: they get their page all the same."""
    sessions = HeldSessions()
    history = reader(sessions, [])
    first = asyncio.create_task(history.read(KEY))
    await asyncio.sleep(0)
    others = [asyncio.create_task(history.read(KEY)) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    sessions.go_on.set()
    frames = await asyncio.gather(*others)
    assert all(frame is frames[0] for frame in frames)
    assert json.loads(frames[0].encoded())["lines"] == []
    assert sessions.reads == 2
