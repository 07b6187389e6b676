"""Ten people and their canaries over two gateways on one PostgreSQL: chats move, memory follows, nothing crosses."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.gateway import GatewayProcess
from tests.fakes.isolation_canaries import CanaryWatch, look_at_files
from tests.fakes.openai_server import ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import TelegramServer, open_telegram
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import team

PEOPLE = 10
CANARIES = 20 if os.environ.get("CROSSINGS") == "full" else 6  # of each
_FIRST = 1_000
_NEW = (CANARIES // 2 - 1, CANARIES - 1)  # after these the conversation ends, and memory is all there is
_ASKS = re.compile(r"\bp(\d+): (?:keep (\w+)|what)")
_RAN = re.compile(r'"key": "(telegram:\d+)", .*"event": "turn.done"')
_CAPS = {f"PARLOUR_CAPS__PERSON_{name}": "0" for name in ("TURNS_PER_10_MIN", "TOKENS_PER_DAY")}


class RememberingModel:
    """Keeps every fact that it is told, and looks for what is missing from its prompts and what is not the person's."""

    def __init__(self) -> None:
        self.watch = CanaryWatch()
        self.kept: list[list[str]] = [[] for _ in range(PEOPLE)]  # in an answer that was seen
        self.stale: list[str] = []
        self.prompts = 0
        self.restarts = 0  # of gateways, completed

    def __call__(self, body: Mapping[str, Any], _: int) -> ScriptedAnswer:
        """Call `remember` for a new fact, then answer."""
        asked = [found for each in body["messages"] for found in _ASKS.finditer(str(each["content"]))][-1]
        person, canary = int(asked[1]), asked[2]
        prompt = json.dumps(body, ensure_ascii=False)
        self.prompts += 1
        self.watch.look(f"prompt of p{person}", {scope_of(person)}, prompt)
        if all(tool["function"]["name"] != "remember" for tool in body.get("tools", ())):
            return ScriptedAnswer(text="nothing")  # a summary, which is made of a part
        self.stale += [f"p{person}: {word}" for word in self.kept[person] if word not in prompt]
        if canary is None or body["messages"][-1]["role"] == "tool":
            return ScriptedAnswer(text=f"done {canary or len(self.kept[person])}")
        call = ScriptedToolCall(name="remember", arguments=json.dumps({"fact": f"Ann keeps {canary}"}), id=canary)
        return ScriptedAnswer(text="", calls=(call,))


def scope_of(person: int) -> str:
    """Return the folder of a person's memory."""
    return f"telegram%3a{_FIRST + person}"


async def say(server: TelegramServer, person: int, text: str) -> str:
    """Say *text* and return the answer."""
    chat = _FIRST + person
    before = len(server.shown(chat))
    server.say(text, chat=chat, sender=chat)
    await server.until(lambda: len(server.shown(chat)) > before)
    return server.shown(chat)[-1]


async def tell_canaries(server: TelegramServer, model: RememberingModel, person: int) -> None:
    """Tell one canary after the other; twice begin a new conversation and ask, with memory alone to answer from."""
    for number in range(CANARIES):
        # At most two sixths ahead of the restarts, which are four: there is something to answer in each of them.
        needed = min(number * 6 // CANARIES - 2, 4)
        await server.until(lambda at=needed: model.restarts >= at)  # type: ignore[misc]
        canary = model.watch.canary(scope_of(person))
        assert canary in await say(server, person, f"p{person}: keep {canary}")
        model.kept[person].append(canary)
        if number in _NEW:
            await say(server, person, "/new")
            assert await say(server, person, f"p{person}: what do you know?") == f"done {number + 1}"


async def restart_in_turn(server: TelegramServer, model: RememberingModel, gateways: Sequence[GatewayProcess]) -> None:
    """Restart one gateway after the other while people write: its chats move to the other."""
    told = PEOPLE * CANARIES
    for number, gateway in enumerate((*gateways, *gateways), 1):
        await server.until(lambda at=told * number // 6: sum(map(len, model.kept)) >= at)  # type: ignore[misc]
        assert await gateway.stop() == 0
        await gateway.start()
        model.restarts = number
        server.changed()


async def test_people_over_two_gateways_see_their_own_facts_and_all_of_them(
    tmp_path: Path, postgres: PostgresServer, zygote: ForkServer, record_property: Callable[[str, object], None]
) -> None:
    """A fact that one gateway keeps is in the next prompt of the other; no prompt and no file has another's."""
    postgres.empty()
    model = RememberingModel()
    async with open_server(model) as llm, open_telegram() as server:
        server.now = lambda: int(time.time())
        front = settings_for(server, ALLOW_FROM="*", PARLOUR_ALLOW_EVERYONE="true", **_CAPS)
        async with team(tmp_path, postgres, zygote, llm, 2, **front) as gateways:
            async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
                for person in range(PEOPLE):
                    tasks.create_task(tell_canaries(server, model, person))
                tasks.create_task(restart_in_turn(server, model, gateways))
            ran = [set(_RAN.findall("\n".join(each.log))) for each in gateways]
            assert len(ran[0] & ran[1]) > PEOPLE // 2, "chats have not moved"
            for each in gateways:
                assert await each.stop() == 0
                look_at_files(model.watch, each.home)
            lines = postgres.query("SELECT scope, text FROM document_line")
            for scope, text in lines:
                model.watch.look(f"a line of {scope}", model.watch.owners(scope.partition("/")[2]), text)
            assert len(lines) >= PEOPLE
    assert model.prompts >= PEOPLE * (2 * CANARIES + len(_NEW))
    assert model.stale == []
    found = f"{len(model.watch.whose)} canaries, {model.watch.seen} seen, {len(model.watch.crossings)} crossings"
    record_property("figure", f"PostgreSQL, two gateways: {PEOPLE} people, {found}")
    assert model.watch.crossings == []
    assert model.watch.seen > model.prompts
