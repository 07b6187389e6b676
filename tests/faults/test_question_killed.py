"""Ask, press, run: killed behind every change of the journal and around every call, the effect happens once.

The gateway runs once and its home is copied behind every transaction, around every send, and before and after the
effect outside. Each copy is started and brought to the end of the same life; some are killed a second time there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.tools.tool import ToolContext, ToolKind, tool
from agent.tools.tool_questions import STANDING_DECISION, TOOL_QUESTION
from gateway.events import InboundKind
from gateway.ports.journal import Job
from tests.e2e.agent.test_reminders import ToldModel
from tests.fakes.home_copies import HomeCopies, HomeCopy, spread
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.faults.matrix import IS_FULL

ARGUMENTS = {"to": "bob"}
ALLOWED, DENIED = "Allowed: `send_letter` runs now.", "Denied: `send_letter` does not run."
UNKNOWN = "It is not known whether these steps completed: `send_letter`"


class LetterModel(ToldModel):
    """Wants to send a letter, and says so; the same request has the same answer after a kill."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Call the tool where a person asked for the letter, else answer."""
        last = request.messages[-1]
        is_asked = last["role"] == "user" and "write to bob" in str(last["content"])
        self.queue = [("send_letter", ARGUMENTS) if is_asked else "I have seen it."]
        return await super().complete(request, sink=sink)


class LetterBox:
    """What letters arrived outside the gateway; sending one may take until the turn is stopped."""

    def __init__(self, sent: int = 0, *, is_slow: bool = False, call: Callable[[], None] = lambda: None) -> None:
        self.sent = sent
        self.running = asyncio.Event()

        @tool("Send a letter.", kind=ToolKind.ACT, subject=lambda to: to)
        async def send_letter(context: ToolContext, to: str) -> str:
            call()
            self.sent += 1
            call()
            self.running.set()
            if is_slow:
                await asyncio.Event().wait()
            return f"sent to {to}"

        self.tool = send_letter


@dataclass
class QuestionLife:
    """A person asks for a letter and presses *words*, one behind the other; the steps may have been done before.

    A second word, `here` or `never`, is stored with the decision: there in the end, once.
    """

    words: tuple[str, ...]
    is_stopped: bool = False
    step: int = 0
    question: str = ""
    box: LetterBox = field(default_factory=LetterBox)

    @property
    def state(self) -> tuple[int, str, int]:
        """What a copy has to know."""
        return self.step, self.question, self.box.sent

    def open_box(self, sent: int, call: Callable[[], None]) -> LetterBox:
        """Start with so many letters outside."""
        self.box = LetterBox(sent, is_slow=self.is_stopped, call=call)
        return self.box

    async def live(self, inside: InProcessGateway, start: int = 0) -> None:
        """Go on with the life from a step on."""
        for step, act in enumerate((self._ask, self._press, self._press_again)):
            if step >= start:
                self.step = step
                await act(inside)
                await _wait_idle(inside)
        assert await _questions(inside) == ()
        standing = [job.payload["is_allowed"] for job in await inside.app.store.jobs.pending_of(STANDING_DECISION)]
        assert standing == [word == "allow" for word, _, extra in (each.partition(" ") for each in self.words) if extra]

    async def _ask(self, inside: InProcessGateway) -> None:
        await inside.channel.say("c", "write to bob", number="1")
        await _wait_idle(inside)
        (job,) = await _questions(inside)
        self.question = str(job.payload["id"])

    async def _press(self, inside: InProcessGateway) -> None:
        for number, words in enumerate(self.words, 2):
            word, _, extra = words.partition(" ")
            command = f"/tools {word} {self.question} {extra}".strip()
            await inside.channel.say("c", command, kind=InboundKind.BUTTON, number=str(number))
        if self.is_stopped:
            ends = [asyncio.ensure_future(each) for each in (self.box.running.wait(), self._wait_settled(inside))]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()
            await inside.channel.say("c", "/stop")
        await self._wait_settled(inside)

    async def _wait_settled(self, inside: InProcessGateway) -> None:
        """Return when a press has taken effect."""
        while await _questions(inside):
            await inside.idle()
        await _wait_idle(inside)

    async def _press_again(self, inside: InProcessGateway) -> None:
        await inside.channel.say("c", f"/tools allow {self.question}", kind=InboundKind.BUTTON, number="9")

    def broken(self, parts: dict[str, str]) -> str:
        """Return which promise is broken; "" if none is."""
        texts = sorted(parts.values())
        allowed, denied = (sum(text.startswith(start) for text in texts) for start in (ALLOWED, DENIED))
        least = 0 if any(UNKNOWN in text for text in texts) else allowed
        if allowed + denied != 1:
            return f"{allowed} times allowed, {denied} times denied: {texts}"
        return "" if least <= self.box.sent <= allowed else f"sent {self.box.sent} times: {texts}"


async def _questions(inside: InProcessGateway) -> tuple[Job, ...]:
    return await inside.app.store.jobs.pending_of(TOOL_QUESTION)


async def _wait_idle(inside: InProcessGateway) -> None:
    """Return when no turn runs, suspects included, and nothing is queued but buttons."""
    while True:
        await inside.idle()
        if not (await inside.app.store.journal.depth())["running"]:
            return


# What is pressed, what else after the last kill, whether the turn is stopped while it runs, and how many kills are
# played. All of them: `CROSSINGS=full`, and by SIGKILL `python -m tests.faults --stage question`.
LIVES = {
    "yes": (("allow",), (), False, 4),
    "no": (("deny",), (), False, 2),
    "yes for 30 days": (("allow here",), (), False, 2),
    "never": (("deny never",), (), False, 2),
    "yes and no at once": (("allow", "deny"), (), False, 3),
    "no and yes at once": (("deny", "allow"), (), False, 2),
    # Killed twice between the accepted call and the commit of the press, the press runs last, behind a new one.
    "yes, killed, no": (("allow",), ("deny",), False, 12),
    "no, killed, yes": (("deny",), ("allow",), False, 2),
    "yes, stopped": (("allow",), (), True, 4),
}


async def play(
    life: QuestionLife, copies: HomeCopies, monkeypatch: pytest.MonkeyPatch, begin: HomeCopy
) -> dict[str, str]:
    """Lead a life from a copy on, and copy it; return what the platform shows in the end."""
    parts, (life.step, life.question, sent) = dict(begin.parts), begin.state
    box, model = life.open_box(sent, copies.take), LetterModel()
    async with gateway(home=begin.home, model=model, tools=[box.tool], kind=copies.plugin(parts)) as inside:
        with copies.recorded(inside, parts, monkeypatch):
            copies.take()
            await life.live(inside, life.step)
    return parts


@pytest.mark.timeout(0 if IS_FULL else 240)
@pytest.mark.parametrize("name", LIVES)
async def test_killed_behind_every_change_a_letter_is_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Exactly once when allowed, or at most once and the person reads that nobody knows; never when denied."""
    words, later, is_stopped, kills = LIVES[name]
    kills = 1_000 if IS_FULL else kills
    life, wrong = QuestionLife(words, is_stopped=is_stopped), list[str]()

    async def lead(folder: str, begin: HomeCopy) -> list[HomeCopy]:
        copies = HomeCopies(tmp_path / folder, lambda: life.state)
        parts = await play(life, copies, monkeypatch, begin)
        wrong.extend([f"{folder}: {broken}"] if (broken := life.broken(parts)) else [])
        return copies.copies

    whole = await lead("whole", HomeCopy(tmp_path / "home", {}, (0, "", 0)))
    assert len(whole) > 15
    for n, copy in spread([each for each in whole if each.state[0] or not later], kills):
        life.words = words
        again = await lead(f"killed at {n}", copy)
        life.words = words + later
        for m, twice in spread(again, 1, 0 if later else n):
            await lead(f"killed at {n} and {m}", twice)
    assert not wrong, "\n".join(wrong)
