"""/as through the whole gateway, over HTTP: which persona, model and tools answer, and whose memory they read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.i18n import translate
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.account_linking import link, unlink
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.faults.process_pool import ForkServer
from tests.faults.test_gateways_shared import team

COOK, TUTOR = "You are a cook.", "You teach Spanish."
PROFILES: dict[str, dict[str, Any]] = {
    "cook": {"soul": "cook.md", "tools": {"allow": ["remember", "memory_search", "send_file"]}},
    "tutor": {"soul": TUTOR, "model": "deep", "effort": "high", "language": "es"},
    "board": {"soul": "You write minutes.", "offered": False},
}
KEY = "pocket:c"


def environment(server: FakeOpenAI, profiles: dict[str, Any] = PROFILES, **more: str) -> dict[str, str]:
    """Return the settings of a gateway with these profiles and two models at *server*."""
    models = {name: {"model": f"openai/{name}", "api_base": server.base} for name in ("quick", "deep")}
    return {
        "PARLOUR_LLM__MODELS": json.dumps(models),
        "PARLOUR_LLM__MODEL": "quick",
        "PARLOUR_PROFILES": json.dumps(profiles),
        **more,
    }


def home(folder: Path) -> Path:
    """Return a home with the file of a persona."""
    found = folder / "home"
    found.mkdir(parents=True, exist_ok=True)
    (found / "cook.md").write_text(COOK + "\n")
    return found


def answers(server: FakeOpenAI) -> list[dict[str, Any]]:
    """Return the requests of turns; jobs of the memory offer no tools of ours."""
    return [body for body in server.requests if body["messages"][0]["role"] == "system" and "tools" in body]


def system(body: dict[str, Any]) -> str:
    """Return the system prompt."""
    return str(body["messages"][0]["content"])


def names(body: dict[str, Any]) -> set[str]:
    """Return the tools that were offered, without the one that reads on in long results of the others."""
    return {each["function"]["name"] for each in body["tools"]} - {"read_result"}


def preference(parlour: InProcessGateway, key: str = KEY) -> str:
    """Return the stored choice of a chat."""
    return parlour.app.store.people.preferences(key).get("profile", "")


async def test_two_chats_of_one_person_have_two_personas_and_one_memory(tmp_path: Path) -> None:
    """Linked accounts: what the cook was told the tutor knows, with another model, effort and voice.

    The choices outlive a restart, linking and unlinking; the erasure of the person takes them.
    """
    async with open_server() as server:
        async with gateway(environment=environment(server), home=home(tmp_path)) as parlour:
            say = parlour.channel.ask
            await say("ann", "/as cook", sender="ann")
            await say("bob", "/as tutor", sender="bob")
            await link(parlour, "bob", "ann")
            await say("ann", "/remember the zeppelin is red", sender="ann")
            await parlour.idle()
        server.bodies.clear()
        async with gateway(environment=environment(server), home=home(tmp_path)) as parlour:
            say = parlour.channel.ask
            await say("ann", "what do you know?", sender="ann")
            await say("bob", "what do you know?", sender="bob")
            cook, tutor = answers(server)
            assert (COOK in system(cook), TUTOR in system(cook)) == (True, False)
            assert (COOK in system(tutor), TUTOR in system(tutor)) == (False, True)
            assert all("zeppelin is red" in system(each) for each in (cook, tutor))
            assert (cook["model"], cook.get("reasoning_effort")) == ("quick", None)
            assert (tutor["model"], tutor.get("reasoning_effort")) == ("deep", "high")
            assert names(cook) == {"remember", "memory_search", "send_file"} < names(tutor)
            assert "Esto es lo que recuerdo" in await say("bob", "/memory", sender="bob")
            await unlink(parlour, "ann")
            assert [preference(parlour, f"pocket:{each}") for each in ("ann", "bob")] == ["cook", "tutor"]
            await say("ann", "/forget everything", sender="ann")
            assert (await say("ann", "/forget everything yes", sender="ann")).startswith("Done.")
            await wait_until_purged(parlour, "people/pocket%3aann")
            assert preference(parlour, "pocket:ann") == ""
            assert preference(parlour, "pocket:bob") == "tutor"


async def test_the_nearest_setting_decides(tmp_path: Path) -> None:
    """The choice in the chat, the profile, the chat's settings, the general one; tools are only taken away."""
    chats = {
        "pocket:c": {"model": "quick", "effort": "low", "soul": "You are nobody.", "tools": {"deny": ["send_file"]}}
    }
    async with open_server() as server:
        settings = environment(server, PARLOUR_CHATS=json.dumps(chats))
        async with gateway(environment=settings, home=home(tmp_path)) as parlour:
            ask = parlour.channel.ask
            await ask("c", "one")
            await ask("c", "/as tutor")
            await ask("c", "two")
            assert translate("profile.own_model", "es", model="`quick` (openai/quick)") not in await ask(
                "c", "/as tutor"
            )
            await ask("c", "/model quick")
            assert translate("profile.own_model", "es", model="`quick` (openai/quick)") in await ask("c", "/as tutor")
            await ask("c", "three")
            await ask("c", "/as cook")
            await ask("c", "four")
            shown = await ask("c", "/settings")
            assert "- `profile`: cook (chosen here)" in shown
            assert "- `soul`: … (from the profile `cook`)" in shown
            assert "- `effort`: low (set for `pocket:c`)" in shown
            assert translate("commands.status_profile", profile="cook") in await ask("c", "/status")
            await ask("c", "/as default")
            assert "status_profile" not in await ask("c", "/status")
            await ask("c", "five")
        bodies = answers(server)
        assert [(each["model"], each.get("reasoning_effort")) for each in bodies] == [
            *(("quick", "low"), ("deep", "high"), ("quick", "high"), ("quick", "low"), ("quick", "low"))
        ]
        personas = ("You are nobody.", TUTOR, TUTOR, COOK, "You are nobody.")
        assert all(persona in system(body) for persona, body in zip(personas, bodies, strict=True))
        assert names(bodies[3]) == {"remember", "memory_search"}  # send_file is denied in this chat


async def test_a_name_is_listed_found_or_refused(tmp_path: Path) -> None:
    """With buttons; what is kept for `chats` is not offered, and a wrong name is answered with those that are."""
    chats = {"pocket:board": {"profile": "board"}}
    async with open_server() as server:
        settings = environment(server, PARLOUR_CHATS=json.dumps(chats))
        async with gateway(environment=settings, home=home(tmp_path)) as parlour:
            ask = parlour.channel.ask
            listed = await ask("c", "/as")
            assert listed.startswith(translate("profile.none"))
            assert ("- `cook`\n- `tutor`" in listed, "board" in listed) == (True, False)
            assert await ask("c", "/as cok `x`") == translate(
                "profile.unknown", name="cok x", profiles="`cook`, `tutor`"
            )
            assert await ask("c", "/as tutr") == translate("profile.near", name="tutr", near="tutor")
            assert "Unknown profile: board" in await ask("c", "/as board")
            assert preference(parlour) == ""
            assert await ask("c", "/as  COOK ") == translate("profile.set", profile="cook")
            assert (await ask("c", "/as")).startswith(translate("profile.chosen", profile="cook"))
            assert await ask("c", "/as default") == translate("profile.back")
            assert (await ask("board", "/as")).startswith(translate("profile.decided", profile="board"))
            await ask("board", "/as cook")
            assert await ask("board", "/as default") == translate("profile.set", profile="board")


async def test_a_profile_that_is_gone_is_said_once(tmp_path: Path) -> None:
    """Below the next answer, and the chat goes back to what it had."""
    async with open_server() as server:
        async with gateway(environment=environment(server), home=home(tmp_path)) as parlour:
            await parlour.channel.ask("c", "/as tutor")
        left = {"cook": PROFILES["cook"], "tutor": {**PROFILES["tutor"], "offered": False}}
        async with gateway(environment=environment(server, left), home=home(tmp_path)) as parlour:
            lost = translate("profile.lost", lost="tutor")
            assert lost in await parlour.channel.ask("c", "/as")
            assert (await parlour.channel.ask("c", "hello")).endswith(lost)
            assert lost not in await parlour.channel.ask("c", "hello again")
            assert preference(parlour) == ""
        assert not any(TUTOR in system(each) for each in answers(server))


async def test_an_admin_chooses_for_a_group(tmp_path: Path) -> None:
    """As with /model: a member sees the profiles, and chooses none; the group's memory is the group's."""
    entries = frozenset({AllowEntry(AdmissionGrant.CHAT, "team")})
    policy = AdmissionPolicy(channel="pocket", entries=entries, group_policy=GroupPolicy.OPEN)
    async with open_server() as server:
        async with gateway(environment=environment(server), home=home(tmp_path), policy=policy) as parlour:
            ask = parlour.channel.ask
            assert "- `cook`" in await ask("team", "/as", group=True, sender="eve")
            refused = await ask("team", "/as cook", group=True, sender="eve")
            assert refused == translate("commands.only_admin", command="as")
            done = await ask("team", "/as cook", group=True, sender="bob", is_admin=True)
            assert done == translate("profile.set", profile="cook")
            await ask("team/9", "hello", group=True, sender="eve")
            audit = [(each.what, each.outcome) for each in await parlour.app.store.access.audit(limit=10)]
        assert COOK in system(answers(server)[-1])
        assert audit == [("as", "done"), ("as", "refused")]


async def test_nobody_without_a_profile_gets_another_prompt(tmp_path: Path) -> None:
    """The bodies with profiles in the settings are those without, byte for byte, also after one was chosen and left."""
    at = datetime(2026, 11, 30, 9, tzinfo=UTC)
    found: list[list[bytes]] = []
    for profiles in ({}, PROFILES):
        async with open_server() as server:
            settings = environment(server, profiles)
            async with gateway(environment=settings, home=home(tmp_path / str(bool(profiles))), now=lambda: at) as up:
                for n in range(3):
                    await up.channel.ask("c", f"question {n}", number=f"{n}", sent_at=at)
            found.append([body.replace(server.base.encode(), b"") for body in server.bodies])
    assert len(found[0]) >= 3
    assert found[0] == found[1]


async def test_a_choice_at_one_gateway_holds_at_the_other(
    tmp_path: Path, postgres: PostgresServer, zygote: ForkServer
) -> None:
    """In the terminal chat, on one PostgreSQL."""
    postgres.empty()
    profiles = json.dumps({"tutor": {"soul": TUTOR}})
    async with open_server() as model, team(tmp_path, postgres, zygote, model, 2, PARLOUR_PROFILES=profiles) as two:
        code, said = await two[0].run_to_its_end("chat", typed="/as tutor\n")
        assert (code, translate("profile.set", profile="tutor").replace("`", "") in said.replace("`", "")) == (0, True)
        assert postgres.query("SELECT value FROM preference WHERE name = 'profile'") == [("tutor",)]
        await two[1].run_to_its_end("chat", typed="hello\n")
    assert TUTOR in system(answers(model)[-1])
