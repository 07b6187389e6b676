"""What a chat's settings do in a running gateway, and what people are shown of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.admission import AdmissionPolicy, policy_of
from gateway.events import SessionKey
from tests.fakes.inprocess_gateway import InstantModel, gateway

CHATS = {
    "pocket:short": {"memory_window": 0, "language": "en", "timezone": "Asia/Tokyo"},
    "pocket:team": {
        "model": "small",
        "tools": {"deny": ["send_file"]},
        "group_policy": "open",
        "caps": {"chat_turns_per_10_min": 50},
        "soul": "You are Ada.",
    },
    "pocket:team/9": {"follow_threads": False},
    "pocket:*": {"reply_in": "thread"},
}


class RequestLogModel(InstantModel):
    """Answers at once; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[list[Any]] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer."""
        if request.purpose == "answer":
            self.prompts.append(list(request.messages))
        return await super().complete(request, sink=sink)


def environment(**more: str) -> dict[str, str]:
    """Return settings that know two models to choose from; those of `offline` need nobody."""
    models = {"small": "offline", "large": "offline:large"}
    variables = {"MODELS": json.dumps(models), "MODEL": "instant"}
    return {
        **{f"PARLOUR_LLM__{name}": value for name, value in variables.items()},
        "PARLOUR_CHATS": json.dumps(CHATS),
        "PARLOUR_TIMEZONE": "Europe/Berlin",
        **more,
    }


def team() -> AdmissionPolicy:
    """Return a policy that lets Ann in, and nobody as an owner."""
    return policy_of("pocket", ["ann", "bob"], [], "mention")


async def test_a_window_is_its_chats() -> None:
    """`memory_window: 0` sends the last ten messages there; the next chat's prompt holds all that was said."""
    model = RequestLogModel()
    async with gateway(model=model, environment=environment()) as parlour:
        for chat in ("short", "long"):
            for number in range(8):
                await parlour.channel.ask(chat, f"number {number}")
        await parlour.idle()
    short, long = model.prompts[7], model.prompts[15]
    assert "number 7" in str(short[-1])
    assert "number 0" not in str(short)
    assert "number 0" in str(long)
    assert "Times are in the zone Asia/Tokyo." in short[0]["content"]
    assert "Times are in the zone Europe/Berlin." in long[0]["content"]


async def test_settings_says_what_is_in_force_and_who_decided_it() -> None:
    """By its place in the file, by choice, or as everywhere; a thread has its chat's unless it says otherwise."""
    async with gateway(model=RequestLogModel(), environment=environment(), policy=team()) as parlour:
        shown = await parlour.channel.ask("team/9", "/settings", group=True)
        (post,) = parlour.channel.posts["team/9"]
        await parlour.channel.ask("own", "/timezone Asia/Kolkata")
        await parlour.channel.ask("own", "/model large")
        own = await parlour.channel.ask("own", "/settings")
        status = await parlour.channel.ask("own", "/status")
    assert post.visible_to == "ann"
    for line in (
        "- `model`: small (set for `pocket:team`)",
        "- `soul`: … (set for `pocket:team`)",
        "- `memory_window`: 100 (default)",
        "- `timezone`: Europe/Berlin (default)",
        "- `group_policy`: open (set for `pocket:team`)",
        "- `reply_in`: thread (set for `pocket:*`)",
        "- `follow_threads`: false (set for `pocket:team/9`)",
        "- `caps.chat_turns_per_10_min`: 50 (set for `pocket:team`)",
    ):
        assert line in shown.splitlines()
    assert "send_file" not in shown
    assert "Ada" not in shown
    assert "- `model`: large (chosen here)" in own
    assert "- `timezone`: Asia/Kolkata (chosen here)" in own
    assert "- `group_policy`: mention (set for this platform)" in own
    assert "model offline:large" in status


async def test_in_a_shared_chat_an_admin_chooses_the_model() -> None:
    """Anybody may ask which one it is; choosing is refused in a line that says who may, and the admin's counts."""
    async with gateway(model=RequestLogModel(), environment=environment(), policy=team()) as parlour:
        asked = await parlour.channel.ask("team", "/model", group=True)
        refused = await parlour.channel.ask("team", "/model large", group=True)
        again = await parlour.channel.ask("team", "/model", group=True)
        taken = await parlour.channel.ask("team/7", "/model large", group=True, sender="bob", is_admin=True)
        last = await parlour.channel.ask("team", "/model", group=True)
        back = await parlour.channel.ask("team", "/model default", group=True, sender="bob", is_admin=True)
    assert "This chat uses `small` (offline), set by the operator." in asked
    assert refused.startswith("Only an admin of this chat")
    assert again == asked
    assert taken == "This chat uses `large` (offline:large) from the next message on."
    assert "chosen for this chat" in last
    assert back == "This chat uses `small` (offline) again from the next message on."


async def test_a_servers_settings_hold_for_what_no_message_begins(tmp_path: Path) -> None:
    """A chat's server is known after a restart, before anybody has written: zone, language and model are its own."""
    chats = {"pocket:guild:811": {"timezone": "Asia/Tokyo", "language": "de", "model": "small"}}
    home, settings = tmp_path / "home", environment(PARLOUR_CHATS=json.dumps(chats))
    async with gateway(home=home, model=RequestLogModel(), environment=settings) as parlour:
        await parlour.channel.ask("901", "hello", group=True, guild="811")
        await parlour.idle()
    async with gateway(home=home, model=RequestLogModel(), environment=settings) as parlour:
        key, locales = SessionKey("pocket", "901"), parlour.app.commands.locales
        assert locales.zone("chats/pocket%3a901") == "Asia/Tokyo"
        assert locales.language(key) == "de"
        assert locales.language(SessionKey("pocket", "902")) == "en"
        await parlour.app.submit(key, "say something")
        await parlour.channel.posted("901", 1)
        rows = await parlour.app.store.usage.totals(since=datetime(2000, 1, 1, tzinfo=UTC), chat="pocket:901")
    assert {row["model"] for row in rows} == {"offline"}
