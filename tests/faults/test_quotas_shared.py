"""One person's quota over two real gateways on one PostgreSQL."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

from gateway.access.usage_counters import TOLD_IN
from tests.fakes.openai_server import ScriptedAnswer, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.telegram_gateway import mention, settings_for
from tests.fakes.telegram_server import open_telegram
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import team, until

OWNER, BEN = 42, 43
GROUPS = [-1_001_000_000_000 - number for number in range(6)]
QUOTA = 4
_ENDED = "SELECT count(*) FROM inbox WHERE state = '{}'"
_ANSWERED = "SELECT 1 FROM inbox WHERE state = 'answered'"
_UNSENT = "SELECT 1 FROM outbox WHERE open IS NOT NULL"
_GROUP_TURN = re.compile(r'"key": "telegram:-\d+", .*"event": "turn.done"')


async def test_a_quota_is_held_over_both_gateways(tmp_path: Path, postgres: PostgresServer, zygote: ForkServer) -> None:
    """Ben writes in six groups at once, which both gateways answer: four answers, and a notice in each of five groups.

    No notice is repeated when the gateway that sent it has stopped. Without the quota the other one answers at once.
    """
    postgres.empty()

    def script(_: object, n: int) -> ScriptedAnswer:
        return ScriptedAnswer(text=f"answer {n}", latency=0.5)  # so that no gateway is free for all

    async with open_server(script) as model, open_telegram() as server:
        server.now = lambda: int(time.time())
        environment = settings_for(server, ALLOW_FROM="*", PARLOUR_ALLOW_EVERYONE="true", PARLOUR_OWNERS="telegram:42")

        def shown(word: str) -> Counter[int]:
            return Counter(post.chat for post in server.posts if word in post.text)

        async def write_in_groups(state: str, count: int) -> None:
            for group in GROUPS:
                server.say("@parlour_bot hello", chat=group, sender=BEN, **mention("@parlour_bot hello"))
            await until(postgres, _ENDED.format(state), [(count,)])
            await until(postgres, _UNSENT, [])

        async def set_quota(words: str, answer: str) -> None:
            server.say(f"/quota telegram:{BEN} {words}", chat=OWNER, sender=OWNER)
            await server.until(lambda: answer in "".join(server.shown(OWNER)[-1:]))

        async with team(tmp_path, postgres, zygote, model, 2, **environment) as gateways:
            await set_quota(f"turns {QUOTA}", "apply from the next message")
            await write_in_groups("refused", len(GROUPS) - QUOTA)
            await server.until(lambda: shown("answer").total() >= QUOTA)
            await write_in_groups("refused", 2 * len(GROUPS) - QUOTA)
            assert all(_GROUP_TURN.search("\n".join(each.log)) for each in gateways)
            assert await gateways[0].stop() == 0
            await write_in_groups("refused", 3 * len(GROUPS) - QUOTA)
            assert sorted(shown("limit of 4 messages").values()) == [1] * TOLD_IN
            assert shown("answer").total() == QUOTA
            answered = len(postgres.query(_ANSWERED))
            await set_quota("default", "are removed")
            await write_in_groups("answered", answered + 1 + len(GROUPS))
            assert shown("limit of 4 messages").total() == TOLD_IN
