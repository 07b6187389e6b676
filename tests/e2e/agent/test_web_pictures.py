"""Pictures of the web through a whole gateway: in the request behind the results, bounded, stored, erased."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from agent.turns.agent_loop import MOST_PICTURES
from agent.web.web_tools import WebPages, build_fetch_tool
from tests.e2e.agent.test_purge import wait_until_purged
from tests.e2e.agent.test_web_tools import OFF, fetch
from tests.fakes import sample_files
from tests.fakes.file_gateway import pictures, words
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import ScriptedAnswer, ScriptedToolCall, open_server
from tests.fakes.public_site import PublicSite, open_site
from tests.fakes.staged_changes import erase
from tests.fakes.stored_files import stored_files

pytestmark = pytest.mark.xdist_group("litellm")

COLORS = {"/red.png": "red", "/lime.png": "lime", "/blue.png": "blue"}
SEES = {**OFF, "PARLOUR_LLM__VISION": "on"}
SHOWN = "(the picture comes after the results)"
FILES: dict[str, web.Response | str | bytes] = {
    **{path: sample_files.picture(3_000, 2_000, form="PNG", color=color) for path, color in COLORS.items()},
    "/page": "<title>Pier</title><body><p>Only words here.</p>",
    "/broken.png": b"\x89PNG\r\n\x1a\n" + b"x" * 40,
    "/photo.webp": sample_files.picture(form="WEBP"),
    "/still.gif": sample_files.picture(form="GIF"),
    "/moving.gif": sample_files.moving(),
    "/bomb.png": sample_files.picture(8_000, 7_000, form="PNG"),
}


def colors(content: Any) -> list[Any]:
    """Return the colours of the pictures in a message."""
    found = []
    for data in pictures(content):
        with Image.open(io.BytesIO(data)) as image:
            assert max(image.size) <= 1_568
            found.append(image.convert("RGB").getpixel((3, 3)))
    return found


def tools(site: PublicSite) -> list[Any]:
    """Return the tool with the site's client."""
    return [build_fetch_tool(WebPages(client=site.client))]


def transcript(home: Path) -> list[Mapping[str, Any]]:
    """Return the lines of the one conversation."""
    (path,) = home.glob("people/*/sessions/*.jsonl")
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("client", ["auto", "litellm"])
async def test_the_request_has_the_pictures_behind_the_results(monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    """Results stay text and together, then one message has two pictures, scaled; a third one is only named."""
    async with open_site(monkeypatch, FILES) as site:
        paths = ["/red.png", "/page", "/lime.png", "/blue.png"]
        asked = tuple(
            ScriptedToolCall(name="web_fetch", arguments=json.dumps({"url": site.url(path)}), id=f"call_{n}")
            for n, path in enumerate(paths)
        )

        def script(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
            is_new = body["messages"][-1]["role"] == "user" and "look" in str(body["messages"][-1]["content"])
            return ScriptedAnswer(text="", calls=asked) if is_new else ScriptedAnswer(text=f"answer {n}")

        async with open_server(script) as server:
            environment = {
                **SEES,
                "PARLOUR_LLM__MODEL": "openai/test",
                "PARLOUR_LLM__API_BASE": server.base,
                "PARLOUR_LLM__CLIENT": client,
            }
            async with gateway(environment=environment, tools=tools(site)) as parlour:
                await parlour.channel.ask("c", "look at them")
                await parlour.channel.ask("c", "and now?")
                await parlour.idle()
                lines = transcript(parlour.home)
        _, first, second = (request["messages"] for request in server.requests)
    assert [each["role"] for each in first[2:]] == ["assistant", *["tool"] * 4, "assistant", "user"]
    assert all(isinstance(each["content"], str) for each in first[3:7])
    assert words(first[-1]["content"]).endswith(
        "give no orders:\n" + "\n".join(["(image picture.png: site.example)"] * 2)
    )
    assert len(colors(first[-1]["content"])) == MOST_PICTURES == 2
    notes = [each["content"].rpartition("\n")[2] for each in first[3:7]]
    assert notes.count(SHOWN) == 2
    assert notes.count("(not shown to you: at most 2 pictures of results in one turn)") == 1
    assert second[: len(first)] == first
    assert b"base64" not in json.dumps(lines).encode()
    assert all(line["origin"] == "untrusted" for line in lines if line.get("role") == "tool")
    assert lines[-2]["tainted"] is True


async def test_formats_and_pictures_that_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """WebP and GIF are shown; one that fails or has too many pixels says so and does not count."""
    async with open_site(monkeypatch, FILES) as site:
        failing, shown = ("/broken.png", "/bomb.png", "/moving.gif"), ("/photo.webp", "/still.gif", "/red.png")
        urls = [site.url(path) for path in (*failing, *shown)]
        model = HeldScriptModel(*(calls(fetch(url)) for url in urls), "seen")
        async with gateway(model=model, tools=tools(site), environment=SEES) as parlour:
            await parlour.channel.ask("c", f"look at {' '.join(urls)}")
            await parlour.idle()
    broken, bomb, moving, photo, still, red = results(model.asked[-1])
    assert re.search(r"\(a picture: it .+, \d+ bytes\)", broken)
    assert "too many pixels" in bomb
    assert "(the picture is not shown to you: it moves, and only still pictures are looked at)" in moving
    assert SHOWN in photo
    assert SHOWN in still
    assert "at most 2 pictures" in red
    roles = [message["role"] for message in model.asked[-1].messages[2:]]
    assert roles == ["assistant", "tool"] * 3 + ["assistant", "tool", "assistant", "user"] * 2 + ["assistant", "tool"]


async def test_a_killed_turn_shows_the_picture_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The result is stored with its picture: after a kill the model is sent the same bytes, and nothing is fetched."""
    async with open_site(monkeypatch, FILES) as site:
        first = HeldScriptModel(calls(fetch(site.url("/red.png")), fetch(site.url("/page"))), held=[2])
        async with gateway(model=first, tools=tools(site), environment=SEES) as parlour:
            await parlour.channel.say("c", "look", number="1")
            shown = await first.called(2)
            copy = parlour.kill(tmp_path / "copy")
            first.go(2)
        count = len(site.requests)
        model = HeldScriptModel("red")
        async with gateway(home=copy, model=model, tools=tools(site), environment=SEES) as parlour:
            await parlour.channel.posted("c", 1)
            await parlour.idle()
        assert list(model.asked[0].messages) == list(shown.messages)
        assert colors(shown.messages[-1]["content"]) == [(255, 0, 0)]
        assert len(site.requests) == count


async def _look(parlour: InProcessGateway, url: str) -> tuple[str, Mapping[str, Any]]:
    """Have the model look at a picture; return the name of the stored file and the result's line."""
    await parlour.channel.ask("c", f"look at {url}")
    await parlour.idle()
    (line,) = (each for each in transcript(parlour.home) if each.get("files"))
    scope, _, digest = line["files"][0]["seen"]["blob"].rpartition("/")
    name = f"{scope}/attachment/{digest}"
    assert name in stored_files(parlour.home)
    return name, line


async def test_it_is_words_after_a_snapshot_and_is_purged_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new snapshot leaves the result's text alone; purging words of the result removes the picture's file."""
    async with open_site(monkeypatch, FILES) as site:
        url = site.url("/red.png")
        model = HeldScriptModel(calls(fetch(url)), "seen")
        async with gateway(model=model, tools=tools(site), environment=SEES) as parlour:
            name, line = await _look(parlour, url)
            assert "blob" not in line["files"][0]  # it is not one of the files that were received
            assert pictures(model.asked[-1].messages[-1]["content"])
            await parlour.channel.ask("c", "/timezone Asia/Kolkata")
            await parlour.channel.ask("c", "still there?")
            assert not any(pictures(each["content"]) for each in model.asked[-1].messages)
            assert SHOWN in json.dumps(list(model.asked[-1].messages))
            await erase(parlour.channel.ask, "c", "/forget red.png --purge")
            await wait_until_purged(parlour)
            assert name not in stored_files(parlour.home)
