"""All servers of tests/fakes/model_zoo through a gateway on Telegram; `python -m tests.model_zoo` writes the table.

One gateway has all models to choose from, and each of them has a chat of its own. What is shown in a cell was seen in
that chat: an answer, an answer with less than was asked for, or a refusal in the right words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import structlog

from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from gateway.i18n import translate
from gateway.i18n.failures import FAILURES
from tests.fakes import sample_files
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.model_zoo import PROFILES
from tests.fakes.model_zoo.profile import ModelProfile
from tests.fakes.model_zoo.server import TOOL, ModelZoo, ZooAct, open_zoo
from tests.fakes.strict_requests import RequestRule as R
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import TelegramServer, telegram_now

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
FIRST, LAST = "<!-- table: python -m tests.model_zoo -->", "<!-- end of the table -->"
AT_ONCE = 32  # chats: Telegram takes a message a second from each
_OWNER, _FIRST = 999, 1_000  # ids of the owner and of the first person, and of their chats
PATIENCE = 25.0  # seconds for one answer; then the cell is stuck
MORE = 1.5  # seconds for the answer after something else was said
PASTE = 4_000  # characters
_PASTES = 4
# What a server may refuse until the gateway has learned it, once each. The last three are calls of other models.
ABILITIES = frozenset(
    {R.TOOLS, R.PICTURES, R.STREAM, R.STREAM_OPTIONS, R.SYSTEM, R.NO_REASONING, R.REASONING, R.DETAILS, R.SIGNATURE}
)
YES, WITHOUT, NOTHING, WRONG, STUCK = "yes", "without", "–", "wrong words", "stuck"
FOUND = {ZooAct.CALL: "tea is amber", ZooAct.CALLS: "tea is amber; sea is blue"}
_RAW = re.compile(r"SECRETTHOUGHT|</?think|tool_call|\"arguments\"|zoo-key-")


class Step(StrEnum):
    """The columns."""

    QUESTION = "question"
    CALL = "tool"
    CALLS = "two tools"
    PICTURE = "picture"
    LIMIT = "rate limit"
    FAILED = "after a failure"
    MODEL = "/model"
    LONG = "long prompt"
    NEW = "/new"


@dataclass(slots=True)
class ZooChat:
    """One person's chat on Telegram."""

    telegram: TelegramServer
    id: int
    posts: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def ask(self, text: str | None, answer: str = "", **fields: Any) -> str:
        """Say something; return all posts until one has *answer* or a reference in it, "" if there was none."""
        if text is not None and text.startswith("/"):
            fields["entities"] = [{"type": "bot_command", "offset": 0, "length": len(text.split()[0])}]
        said: list[str] = []
        self.telegram.say(text, chat=self.id, sender=self.id, **fields)
        with suppress(TimeoutError):
            while not any(answer in each or "(ref " in each for each in said):
                async with asyncio.timeout(MORE if said else PATIENCE):
                    said.append(await self.posts.get())
        return "\n".join(said)


@dataclass(slots=True)
class ZooRow:
    """What came of one chat: a word for each step of its profile, and what was wrong."""

    profile: ModelProfile
    chat: ZooChat
    cells: dict[Step, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of its marks
    said: list[str] = field(default_factory=list)  # by the bot


# Answers what the gateway asks on its own behalf, so that no profile is asked but by its chat.
BACKGROUND = ModelProfile(name="background", title="", model="openai/background", source="")


@dataclass(slots=True)
class ZooRun:
    """The run of all profiles. `rows` is its result; `walks` are chats that went from one model to the next."""

    zoo: ModelZoo
    rows: list[ZooRow]
    walks: list[ZooRow]
    _names: int = 0

    def faults(self) -> list[str]:
        """Return what was wrong, one line for each kind, with how often it was."""
        rows = [(each.profile.name, each) for each in self.rows] + [
            (f"walk from {w.profile.name}", w) for w in self.walks
        ]
        return [f"{name}: {n} x {fault}" for name, row in rows for fault, n in Counter(row.faults).items()]

    async def converse(self, row: ZooRow, other: ModelProfile) -> None:
        """Go through all steps with one profile; *other* is where `/model` leads in between."""
        profile = row.profile
        await self._choose(row, profile)
        await self._turn(row, Step.QUESTION, ZooAct.SILENCE if profile.stream.silence else ZooAct.QUESTION)
        await self._turn(row, Step.CALL, ZooAct.CALL)
        await self._turn(row, Step.CALLS, ZooAct.CALLS)
        await self._turn(row, Step.PICTURE, ZooAct.QUESTION, has_picture=True)
        if profile.limit is None:
            row.cells[Step.LIMIT] = NOTHING
        else:
            await self._turn(row, Step.LIMIT, ZooAct.LIMIT)
        await self._fail(row)
        await self._turn(row, Step.FAILED, ZooAct.QUESTION)
        await self._choose(row, other)
        await self._turn(row, Step.MODEL, ZooAct.CALL, answered_by=other)
        await self._choose(row, profile)
        await self._turn(row, Step.MODEL, ZooAct.QUESTION)
        await self._paste(row)
        await self._say(row, "/new")
        await self._turn(row, Step.NEW, ZooAct.QUESTION)
        self._judge_requests(row)

    async def walk(self, row: ZooRow, profiles: Sequence[ModelProfile]) -> None:
        """Ask one model after the other in one chat, each with a call, and the first one again."""
        for profile in (*profiles, profiles[0]):
            await self._choose(row, profile)
            await self._turn(row, Step.MODEL, ZooAct.CALL, answered_by=profile)
        self._judge_requests(row)

    async def _say(self, row: ZooRow, text: str | None, answer: str = "", **fields: Any) -> str:
        said = await row.chat.ask(text, answer, **fields)
        row.said.append(said)
        return said

    async def _choose(self, row: ZooRow, profile: ModelProfile) -> None:
        said = await self._say(row, f"/model {profile.name}", profile.name)
        if profile.name not in said:
            row.faults.append(f"/model {profile.name}: {said!r}")

    async def _turn(
        self,
        row: ZooRow,
        step: Step,
        act: ZooAct,
        *,
        has_picture: bool = False,
        answered_by: ModelProfile | None = None,
        padding: str = "",
    ) -> None:
        """Ask once and write down what came."""
        name, profile = self._name(row), answered_by or row.profile
        text, answer = f"{padding} zoo-{act}-{name}".strip(), f"Answer {name}"
        fields = {"caption": text, **_picture(row.chat.telegram)} if has_picture else {}
        said = await self._say(row, None if has_picture else text, answer, **fields)
        word = _judge(said, answer, act, profile, has_picture=has_picture)
        if word not in (YES, WITHOUT):
            row.faults.append(f"{step}, {profile.name}: {said!r}")
        if not self.zoo.of(profile, name):
            row.faults.append(f"{step}: {profile.name} was not asked")
        if row.cells.get(step, YES) == YES and (answered_by is None or word not in (YES, WITHOUT)):
            row.cells[step] = word

    def _name(self, row: ZooRow) -> str:
        self._names += 1
        row.names.add(f"n{self._names}")
        return f"n{self._names}"

    async def _fail(self, row: ZooRow) -> None:
        """Have one turn refused for its key: in words, at once, and without the key."""
        name = self._name(row)
        said = await self._say(row, f"zoo-{ZooAct.FAILED}-{name}")
        if _failure(said) != "refused":
            row.faults.append(f"failed turn: {said!r}")
        if len(self.zoo.of(row.profile, name)) != 1:
            row.faults.append(f"failed turn: {len(self.zoo.of(row.profile, name))} requests")

    async def _paste(self, row: ZooRow) -> None:
        """Say long things until the prompt is above the window that the server has from now on."""
        weight = max((each.tokens for each in self.zoo.of(row.profile) if each.name in row.names), default=0)
        self.zoo.windows[row.profile.name] = int(weight * 1.1) + PASTE // 4 * (_PASTES - 2)
        for n in range(_PASTES):
            await self._turn(row, Step.LONG, ZooAct.QUESTION, padding=f"{n} of the long texts. " * (PASTE // 23))
        refused = [each for each in self.zoo.of(row.profile) if each.refusal == "overflow"]
        if row.profile.overflow is not None and not refused:
            row.faults.append("long prompt: nothing was too long")

    def _judge_requests(self, row: ZooRow) -> None:
        """Count what was refused: an ability once, a rule of the history never, nothing before a wait is over."""
        refused = [each for each in self.zoo.requests if each.name in row.names and each.refusal]
        counted = Counter((each.profile, each.refusal.partition(":")[0]) for each in refused)
        allowed: dict[str, int] = {"overflow": 2, "limit": 1, "key": 1, **{str(each): 1 for each in ABILITIES}}
        for (name, reason), count in counted.items():
            if count > allowed.get(reason, 0):
                example = next(
                    each.refusal for each in refused if each.profile == name and each.refusal.startswith(reason)
                )
                row.faults.append(f"{count} requests refused by {name}: {example}")


def _judge(said: str, answer: str, act: ZooAct, profile: ModelProfile, *, has_picture: bool) -> str:
    """Return the word for a cell."""
    if answer not in said:
        return _failure(said) or (WRONG if said else STUCK)
    if has_picture and "I see a picture" not in said:
        may_lack = R.PICTURES in profile.refuses or not profile.is_seeing
        return WITHOUT if may_lack and "I cannot see the picture" in said else WRONG
    if act in (ZooAct.CALL, ZooAct.CALLS) and FOUND[act] not in said:
        return WITHOUT if not profile.has_tools and "I cannot look things up" in said else WRONG
    return YES


def _failure(said: str) -> str:
    """Return the name of the failure whose sentence was said; "" if none was."""
    return next((each.name for each in FAILURES if translate(f"failures.{each.name}") in said), "")


def _picture(telegram: TelegramServer) -> dict[str, Any]:
    data = sample_files.picture()
    file = {
        "file_id": telegram.files.keep(data),
        "file_name": "p.jpg",
        "mime_type": "image/jpeg",
        "file_size": len(data),
    }
    return {"document": file}


@tool("Look a word up.", kind=ToolKind.LOOK, ask=AskRule.NEVER, name=TOOL)
async def look_up(_: ToolContext, word: str) -> str:
    """Return what is known of a word."""
    return f"{word} is {'amber' if word == 'tea' else 'blue'}"


def environment(zoo: ModelZoo, telegram: TelegramServer, chats: Sequence[int]) -> dict[str, str]:
    """Return the settings of a gateway with all models of the zoo."""
    models = {
        profile.name: {
            "model": profile.model,
            "api_base": zoo.api_base(profile),
            "api_key": zoo.key(profile),
            "vision": "on" if profile.is_seeing else "auto",
        }
        for profile in zoo.profiles.values()
        if profile is not BACKGROUND
    }
    people = [str(each) for each in chats]
    return {
        "PARLOUR_LLM__MODEL": BACKGROUND.model,
        "PARLOUR_LLM__API_BASE": zoo.api_base(BACKGROUND),
        "PARLOUR_LLM__API_KEY": zoo.key(BACKGROUND),
        "PARLOUR_LLM__MODELS": json.dumps(models),
        "PARLOUR_LLM__TIMEOUT_SECONDS": "15",
        "PARLOUR_LLM__STREAM_SILENCE_SECONDS": "3",
        "PARLOUR_CHATS": json.dumps({"telegram:*": {"tools": {"allow": [TOOL]}}}),
        "PARLOUR_OWNERS": f"telegram:{_OWNER}",
        **settings_for(telegram, ALLOW_FROM=",".join([str(_OWNER), *people])),
    }


async def run(profiles: Mapping[str, ModelProfile] = PROFILES) -> ZooRun:
    """Go through all profiles, a few at a time."""
    listed = list(profiles.values())
    tours = [tour for tour in (listed[::2], listed[1::2]) if tour]
    with open_zoo({**profiles, BACKGROUND.name: BACKGROUND}) as zoo:
        async with telegram_now() as telegram:
            rows = [ZooRow(profile, ZooChat(telegram, _FIRST + n)) for n, profile in enumerate(listed)]
            walks = [ZooRow(tour[0], ZooChat(telegram, _FIRST + len(rows) + n)) for n, tour in enumerate(tours)]
            result, everybody = ZooRun(zoo, rows, walks), [*rows, *walks]
            settings = environment(zoo, telegram, [each.chat.id for each in everybody])
            async with gateway(environment=settings, tools=(look_up,)):
                owner = ZooChat(telegram, _OWNER)
                chats = {each.id: each for each in (owner, *(row.chat for row in everybody))}
                watching = asyncio.create_task(_hand_out(telegram, chats))
                await owner.ask("zoo-question-n0")
                places = asyncio.Semaphore(AT_ONCE)

                async def take(n: int) -> None:
                    async with places:
                        await result.converse(rows[n], listed[(n + 2) % len(listed)])

                async with asyncio.TaskGroup() as conversations:
                    for row, tour in zip(walks, tours, strict=True):
                        conversations.create_task(result.walk(row, tour))
                    for n in range(len(rows)):
                        conversations.create_task(take(n))
                await _judge_notices(rows, telegram)
                watching.cancel()
            _judge_texts(everybody, telegram)
    return result


async def _hand_out(telegram: TelegramServer, chats: Mapping[int, ZooChat]) -> None:
    """Give each post to its chat."""
    done = 0
    while True:
        for post in telegram.posts[done:]:
            done += 1
            chats[post.chat].posts.put_nowait(post.text)
        await telegram.wait_changed()


async def _judge_notices(rows: Sequence[ZooRow], telegram: TelegramServer) -> None:
    """Wait for the line to the owner about each model that has no tools; there is one for each, and no other."""

    def count(row: ZooRow) -> int:
        return sum(f"{row.profile.model} " in each and "tools" in each for each in telegram.shown(_OWNER))

    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await telegram.until(lambda: all(count(row) for row in rows if R.TOOLS in row.profile.refuses))
    for row in rows:
        if count(row) != (R.TOOLS in row.profile.refuses):
            row.faults.append(f"{count(row)} lines to the owner about tools")


def _judge_texts(rows: Sequence[ZooRow], telegram: TelegramServer) -> None:
    """Look for what nobody may read in everything that was ever sent to Telegram, previews included."""
    for _, fields in telegram.calls:
        chat, raw = fields.get("chat_id"), _RAW.search(str(fields.get("text", "")))
        if isinstance(chat, int) and chat >= _FIRST and raw:
            rows[chat - _FIRST].faults.append(f"a message or preview shows {raw[0]!r}")


def table(result: ZooRun) -> str:
    """Return the rows as Markdown, and below them what is known of each profile."""
    lines = [f"| model | {' | '.join(Step)} |", f"|---|{'---|' * len(Step)}"]
    for row in result.rows:
        cells = [row.cells.get(step, STUCK) for step in Step]
        lines.append(f"| {row.profile.title} | {' | '.join(cells)} |")
    lines += ["", "| model | tried as | through | known |", "|---|---|---|---|"]
    for row in result.rows:
        profile = row.profile
        through = "litellm" if profile.is_through_litellm else "–"
        lines.append(f"| {profile.title} | `{profile.model}` | {through} | {profile.note or '–'} |")
    return "\n".join(lines)


def page_with(rows: str, page: str) -> str:
    """Return *page* with *rows* in the place of its table."""
    before, _, rest = page.partition(FIRST)
    _, _, after = rest.partition(LAST)
    return f"{before}{FIRST}\n\n{rows}\n\n{LAST}{after}"


def main() -> None:
    """Print the table and what is wrong; write the table into docs/models.md if nothing is."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", help="profiles; all of them without any")
    names = parser.parse_args().names
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    result = asyncio.run(run({name: PROFILES[name] for name in names} if names else PROFILES))
    print(table(result))
    faults = result.faults()
    print("\n".join(faults))
    if not faults and not names:
        PAGE.write_text(page_with(table(result), PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
