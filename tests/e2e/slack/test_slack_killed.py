"""Killed at every call that an answer makes to Slack: the table in docs/slack.md is what happens."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path

from gateway.i18n import translate
from tests.fakes.held_model import HeldModel
from tests.fakes.kill_snapshots import KillSnapshot, KillSnapshots
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_guarantees import promised
from tests.fakes.slack_server import ANN, BOT_USER, DM, ROOM, SlackServer, slack_server

LONG = "It begins with some words that are worth a notification.\n\n" + "\n\n".join(
    f"paragraph {n} " + "word " * 60 for n in range(70)
)
WHOLE = ["beginning", "answer.md"]  # the beginning in the preview's place, and the rest as a file

# Killed before or after which call -> what stands in the thread in the end. Every row of the page's table once.
EXPECTED = {
    "before users.info 1": WHOLE,  # handed out, not stored
    "before ack 1": WHOLE,  # stored, not acknowledged
    "before conversations.history 1": WHOLE,  # acknowledged, and the turn has begun
    "before chat.postMessage 1": WHOLE,  # the preview is about to be sent: read back, and it is not there
    "after chat.postMessage 1": WHOLE,  # it was, and we never heard: read back, and taken over
    "before chat.update 1": WHOLE,  # the answer is about to take its place
    "after chat.update 1": WHOLE,
    "before files.getUploadURLExternal 1": WHOLE,
    "after files.getUploadURLExternal 1": WHOLE,
    "before upload 1": WHOLE,
    "after upload 1": WHOLE,
    "before files.completeUploadExternal 1": WHOLE,  # the file's id is stored, and nobody has seen the file
    "after files.completeUploadExternal 1": WHOLE,  # everybody sees it, and we never heard
    "before reactions.add 1": WHOLE,
    "after reactions.add 1": WHOLE,
    "before reactions.remove 1": WHOLE,  # the answer is delivered: nothing more is due for it
    "after reactions.remove 1": WHOLE,
    "at the end": WHOLE,
}
SHORT = "It begins with some words that are worth a notification, and here it ends."
MARKED = f"_{translate('delivery.may_repeat')}_\n{SHORT}"
# Without history scopes nobody can tell whether the preview stood: the answer says that it may repeat it.
LEAST = {
    "before ack 1": [SHORT],
    "before chat.postMessage 1": [MARKED],
    "after chat.postMessage 1": [SHORT[:57].strip(), MARKED],
    "before chat.update 1": [SHORT],
    "after chat.update 1": [SHORT],
    "at the end": [SHORT],
}
_KEPT = ("places", "users", "files", "uploads", "pending", "scopes", "reactions", "_last")


def copy_slack(server: SlackServer) -> SlackServer:
    """Return Slack as it is now."""
    there = SlackServer()
    for field in _KEPT:
        setattr(there, field, deepcopy(getattr(server, field)))
    return there


async def film(server: SlackServer, camera: KillSnapshots[SlackServer], model: HeldModel, place: str, text: str) -> str:
    """Let Ann ask and the whole answer come, before the camera; return the thread of the answer."""
    async with open_gateway(server, model=model) as parlour:
        camera.parlour = parlour
        server.on_call = camera.see
        ts = server.say(place, ANN, text)
        thread = ts if place == ROOM else ""
        await server.until(lambda: bool(server.shown(place, thread)) and not server.pending)
        model.go_on.set()
        await parlour.idle()
        await server.until(lambda: not server.reactions)
        camera.take("at the end")
        server.on_call = lambda method, when: None
    return thread


async def what_stands_after(
    moment: KillSnapshot[SlackServer], model: HeldModel, place: str, thread: str, messages: int
) -> list[str]:
    """Start again with what was left, and return what stands there when everything is quiet and no reaction is left."""
    async with (
        slack_server(moment.server) as server,
        open_gateway(server, model=model, home=moment.home) as parlour,
    ):
        server.deliver_again()
        await server.until(lambda: not server.pending and len(stands(server, place, thread)) >= messages)
        await parlour.idle()
        await server.until(lambda: not server.reactions)
        return stands(server, place, thread)


def stands(server: SlackServer, place: str, thread: str) -> list[str]:
    """Return our messages there: their text, or the name of the file that they are."""
    return [
        message["files"][0]["name"] if message.get("files") else message["text"]
        for message in server.places[place].messages
        if message["user"] == BOT_USER and message.get("thread_ts", "") == thread
    ]


PROMISED = {
    "killed before a message is stored": "one answer",
    "killed after it is stored, before it is acknowledged": "one answer",
    "killed while it thinks": "one answer",
    "killed while a preview is sent or grows": "one answer",
    "killed while an answer is sent": "one answer",
    "killed while a file is uploaded": "the file once",
    "killed while a file is shown": "the file once",
    "the same without history scopes or `metadata.message:read`": "perhaps two, the second marked",
}


async def test_what_the_table_says_is_what_happens(tmp_path: Path) -> None:
    """At every moment of an answer's way, preview and file included: nothing is lost, nothing is there twice."""
    assert {row: promised(row) for row in PROMISED} == PROMISED
    async with slack_server() as server:
        camera = KillSnapshots(partial(copy_slack, server), tmp_path, EXPECTED)
        thread = await film(server, camera, HeldModel(LONG, first=57), ROOM, f"{CALL} at length")
    assert sorted(camera.moments) == sorted(EXPECTED)
    assert camera.moments["before ack 1"].server.pending  # else it says nothing about what is not acknowledged
    assert camera.moments["before reactions.remove 1"].server.reactions
    found = {}
    for name, moment in camera.moments.items():
        shown = await what_stands_after(moment, HeldModel(LONG, held=False), ROOM, thread, 2)
        found[name] = ["beginning" if each.startswith(SHORT[:50]) else each for each in shown]
    assert found == EXPECTED


async def test_with_the_least_scopes_a_doubt_is_marked(tmp_path: Path) -> None:
    """What cannot be read back is said to be perhaps a repeat: never two answers that look like two."""
    async with slack_server() as server:
        server.scopes -= {"channels:history", "groups:history", "mpim:history", "metadata.message:read", "files:write"}
        camera = KillSnapshots(partial(copy_slack, server), tmp_path, LEAST)
        await film(server, camera, HeldModel(SHORT, first=57), DM, "hello")
    assert sorted(camera.moments) == sorted(LEAST)
    found = {
        name: await what_stands_after(moment, HeldModel(SHORT, held=False), DM, "", len(LEAST[name]))
        for name, moment in camera.moments.items()
    }
    assert found == LEAST
