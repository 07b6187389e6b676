"""Nothing crosses: ten people's canaries, groups, threads, links and unlinks, a hijacked model, and a look everywhere.

A moderate size here; `CROSSINGS=full python -m pytest tests/e2e/agent/test_scope_isolation.py` plays a hundred
mixed turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

from agent.commands.command import CommandRouter
from gateway.app.runtime import Runtime
from tests.fakes.account_linking import link, settled, summarised, unlink
from tests.fakes.documents import edit_by_hand
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.isolation_canaries import HOSTILE, CanaryWatch, HijackedModel, look_at_files

PEOPLE = [f"p{n}" for n in range(10)]
FACTS = 20
MIXED = 100 if os.environ.get("CROSSINGS") == "full" else 3
ENVIRONMENT = {
    "PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "16",
    "PARLOUR_AGENT__OVERLAP": "steer",
    "PARLOUR_AGENT__MERGE": "burst",
}
# What destroys, or changes who is who; everything else that is typed is tried on everybody.
_LEFT_OUT = frozenset({"forget", "link", "new", "remember", "retry", "share", "stop", "unlink", "unshare"})
COMMANDS = [each.name for each in CommandRouter.load().commands if each.name not in _LEFT_OUT]


async def say(parlour: InProcessGateway, account: str, text: str, chat: str = "") -> str:
    """Say something and return the answer; in a group, to us."""
    is_group = chat.startswith("g")
    return await parlour.channel.ask(chat or account, text, sender=account, group=is_group, is_addressed=is_group)


async def tell(parlour: InProcessGateway, watch: CanaryWatch, account: str) -> None:
    """Have one person tell their facts: some to be remembered, some in a burst, merged into a turn or steering it."""
    words = [watch.canary(account) for _ in range(FACTS)]
    await say(parlour, account, f"/remember I keep {words[0]} and {words[1]}")
    for n in range(2, FACTS, 6):
        await parlour.channel.say(account, f"I like {' '.join(words[n : n + 6])}", sender=account)


async def attack(parlour: InProcessGateway, account: str) -> None:
    """Have one person type every command that only reads, with hostile words."""
    for n, command in enumerate(COMMANDS):
        await say(parlour, account, f"/{command} {HOSTILE[n % len(HOSTILE)]}")
    for words in ("why kanari", "log", "diff", "pending", "shared", "undo people", "approve e", "reject ../"):
        await say(parlour, account, f"/memory {words}")


def look_at_posts(watch: CanaryWatch, parlour: InProcessGateway, since: dict[str, int]) -> None:
    """Look at what was sent since the last look: at this moment it may be told to whoever is in the chat."""
    for chat, posts in parlour.channel.posts.items():
        for post in posts[since.get(chat, 0) :]:
            for text in (post.text, *post.was):
                watch.look(f"post in {chat}", watch.owners(chat), text)
        since[chat] = len(posts)


def look_at_metrics(watch: CanaryWatch, app: Runtime) -> None:
    """No label and no value holds anybody's words."""
    watch.look("metrics", (), app.meter.text().decode())


async def test_nothing_crosses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    """No prompt, tool result, answer, file, label or log line of the wrong scope, also after unlinks and a restart."""
    home, watch, seen = tmp_path / "home", CanaryWatch(), dict[str, int]()
    model = HijackedModel(watch)
    async with gateway(home=home, model=model, environment=ENVIRONMENT) as parlour:
        watch.links = parlour.app.store.links
        await asyncio.gather(*(tell(parlour, watch, each) for each in PEOPLE))
        await parlour.idle()
        await asyncio.gather(*(say(parlour, each, "what do I like?") for each in PEOPLE))
        for n, each in enumerate(PEOPLE):
            group = f"g{n % 2}"
            await say(parlour, each, f"we keep {watch.canary(group)}", chat=f"{group}/t{n % 4}")
        await asyncio.gather(*(attack(parlour, each) for each in PEOPLE[6:]))
        look_at_posts(watch, parlour, seen)
        await link(parlour, "p0", "p1")
        await link(parlour, "p3", "p2")
        await link(parlour, "p4", "p5")  # p4 phished p5, who said yes to it
        for n in range(MIXED):
            for each in PEOPLE[:6]:
                await say(parlour, each, f"now {watch.canary(each)}" if n % 2 else "what do you know of me?")
            await say(parlour, "p0", "and here?", chat="g0")
        await say(parlour, "p1", f"/remember {watch.canary('p1')} is mine")
        await summarised(parlour, *(f"people/pocket%3a{each}" for each in PEOPLE))
        look_at_posts(watch, parlour, seen)
        assert not watch.crossings
        for each in ("p1", "p3", "p5"):
            await unlink(parlour, each)
        seen = {chat: len(posts) for chat, posts in parlour.channel.posts.items()}
        await asyncio.gather(*(say(parlour, each, "what do you know of me?") for each in PEOPLE))
        await asyncio.gather(*(attack(parlour, each) for each in PEOPLE[:6]))
        await summarised(parlour, *(f"people/pocket%3a{each}" for each in PEOPLE))
        look_at_posts(watch, parlour, seen)
        look_at_metrics(watch, parlour.app)
        await settled(parlour)
    async with gateway(home=home, model=model, environment=ENVIRONMENT) as parlour:
        watch.links = parlour.app.store.links
        await asyncio.gather(*(say(parlour, each, "what is left of me?") for each in PEOPLE))
        look_at_posts(watch, parlour, {})
        look_at_metrics(watch, parlour.app)
    look_at_files(watch, home)
    captured = capsys.readouterr()
    watch.look("log", (), captured.out + captured.err)
    figure = f"{len(PEOPLE)} people, {len(watch.whose)} canaries, {watch.seen} seen, {len(watch.crossings)} crossings"
    record_property("figure", f"SQLite: {figure}")
    assert not watch.crossings
    assert watch.seen > 1_000  # there was something to see
    assert {"memory_search", "remember", "send_file"} <= model.called
    for each in PEOPLE:  # and what is theirs is still known to them
        own = [word for word, owner in watch.whose.items() if owner == each]
        kept = "".join(path.read_text() for path in (home / f"people/pocket%3a{each}/memory").glob("*.md"))
        assert own[0] in kept


async def test_a_planted_crossing_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checker can fail: somebody else's line in a file, a prompt, a post, a version and a log is seen."""
    home, watch = tmp_path / "home", CanaryWatch()
    async with gateway(home=home, model=HijackedModel(watch), environment=ENVIRONMENT) as parlour:
        watch.links = parlour.app.store.links
        word = watch.canary("p0")
        await say(parlour, "p0", f"/remember {word}")
        await say(parlour, "p1", "/remember nothing much")
        await say(parlour, "p1", "hello")
        await summarised(parlour, "people/pocket%3ap0", "people/pocket%3ap1")  # nobody else writes there now
        assert not watch.crossings
        path = home / "people/pocket%3ap1/memory/MEMORY.md"
        await parlour.settle_documents()
        edit_by_hand(path, path.read_text() + f"- {word}\n")
        await say(parlour, "p1", "/memory log")
        await say(parlour, "p1", "what do you know?")
        await parlour.settle_documents()  # the commit of the repository comes behind the file
        look_at_posts(watch, parlour, {})
        look_at_files(watch, home)
        structlog.get_logger().warning("planted", word=word)
        watch.look("log", (), capsys.readouterr().out)
    places = {where.split(" ")[0].partition("/memory/")[2] or where for where, _ in watch.crossings}
    assert "MEMORY.md" in places
    assert "log" in places
    assert "post in p1" in places
    assert "answer prompt of p1" in places
    assert any(place.startswith(".git/objects") for place in places)


async def test_three_hundred_threads_share_one_memory(tmp_path: Path) -> None:
    """300 threads of a channel: one MEMORY.md, one repository; what the first learned is in the last one's prompt."""
    home, watch = tmp_path / "home", CanaryWatch()
    model = HijackedModel(watch, attacks=False)
    word = watch.canary("g0")
    async with gateway(home=home, model=model, environment=ENVIRONMENT) as parlour:
        await say(parlour, "p0", f"/remember {word}", chat="g0/t0")
        for n in range(0, 300, 50):
            threads = range(max(n, 1), min(n + 50, 299))
            await asyncio.gather(*(say(parlour, "p1", "hello", chat=f"g0/t{each}") for each in threads))
        known = await say(parlour, "p1", "what do you know?", chat="g0/t299")
        assert word in known
        await parlour.idle()
        pending = await parlour.app.store.jobs.pending_in("chats/pocket%3ag0")
        assert len([each for each in pending if each.kind == "dream"]) <= 1
    assert not watch.crossings
    assert [path.name for path in (home / "chats").iterdir()] == ["pocket%3ag0"]
    assert len(list(home.rglob("MEMORY.md"))) == 1
    assert len(list(home.rglob(".git"))) == 1
    assert len(list((home / "chats/pocket%3ag0/sessions").glob("pocket*.jsonl"))) == 300
