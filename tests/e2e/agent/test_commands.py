"""Commands before the whole gateway: who may, what they do, and what stays in the history."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.app.runtime import Runtime
from gateway.errors import UserError
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.store.inspection import TurnQuery
from tests.fakes.held_model import HeldScriptModel, calls, users
from tests.fakes.inprocess_gateway import OPEN, gateway

KEY = SessionKey("pocket", "c")


async def history(app: Runtime, chat: str = "c") -> list[tuple[str, str]]:
    """Return role and text of what people see."""
    return [
        (line.role, line.text)
        for line in await app.memory.sessions.displayed_messages(SessionKey("pocket", chat), limit=100)
    ]


async def test_stop_ends_the_turn_and_the_queue_and_says_how_many() -> None:
    """The model's call is given up, what waits is dropped and counted, and what comes later is answered."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model) as parlour:
        for n in range(3):
            await parlour.channel.say("c", f"m{n}")
        await model.called(1)
        assert await parlour.channel.ask("c", "/stop") == translate("commands.stopped", queued=2)
        await parlour.idle()
        assert translate("commands.stopped_turn") in [post.text for post in parlour.channel.posts["c"]]
        assert await parlour.channel.ask("c", "later") == "answer 2"
        assert users(model.asked[1]) == ["m0", "later"]
        assert await parlour.channel.ask("c", "/stop") == translate("commands.nothing_to_stop")


async def test_stop_of_a_queue_alone() -> None:
    """Where nothing of the sender's runs, what waits is dropped all the same."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model, policy=OPEN) as parlour:
        await parlour.channel.say("c", "anns", sender="ann", group=True)
        await model.called(1)
        await parlour.channel.say("c", "bobs", sender="bob", group=True)
        stopped = await parlour.channel.ask("c", "!stop", sender="bob", group=True)
        assert stopped == translate("commands.stopped_queue", queued=1)
        nothing = await parlour.channel.ask("c", "@parlour_bot stop", sender="bob", group=True)
        assert nothing == translate("commands.nothing_to_stop")
        # Where nothing waited, the end of the turn says all there is to say: one line, not two.
        await parlour.channel.say("c", "/stop@parlour_bot", sender="eve", group=True, is_admin=True)
        await parlour.idle()
        assert parlour.channel.posts["c"][-1].text == translate("commands.stopped_turn")


async def test_stop_after_the_commit_began_is_too_late() -> None:
    """An answer that is being stored is not stopped, and /stop says so."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model) as parlour:
        _, answer = await parlour.channel.say("c", "hello")
        await model.called(1)
        running = parlour.app.pool.turns.get(KEY)
        assert running is not None
        running.is_committing = True
        assert await parlour.channel.ask("c", "/stop") == translate("commands.already_answered")
        running.is_committing = False
        model.go(1)
        await answer
        assert parlour.channel.posts["c"][-1].text == "answer 1"


async def test_a_stopped_turn_keeps_what_its_tools_did() -> None:
    """After /stop the next turn's prompt holds the tool's result and what steered in: they did happen."""

    @tool("Look.", kind=ToolKind.LOOK, name="look")
    async def look(_: ToolContext) -> str:
        return "seen"

    model = HeldScriptModel(calls(("look", "{}")), held=[1, 2])
    async with gateway(model=model, tools=[look], environment={"PARLOUR_AGENT__OVERLAP": "steer"}) as parlour:
        await parlour.channel.say("c", "look around")
        await model.called(1)
        await parlour.channel.say("c", "hurry")
        model.go(1)
        await model.called(2)
        await parlour.channel.say("c", "/stop")
        await parlour.idle()
        await parlour.channel.ask("c", "and?")
        assert users(model.asked[2]) == ["look around", "hurry", "and?"]
        assert [m["content"] for m in model.asked[2].messages if m["role"] == "tool"] == ["seen"]
        assert len(model.asked) == 3


async def test_new_renames_the_transcript_and_answers_at_once() -> None:
    """The old transcript is archived under its id and the turn's, once, and the summary is a durable job."""
    model = HeldScriptModel()
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("c", "old words")
        await parlour.idle()
        session = await parlour.app.store.journal.session(KEY)
        assert await parlour.channel.ask("c", "/new", number="9") == translate("commands.new")
        await parlour.channel.say("c", "/new", number="9")
        await parlour.idle()
        archives = [path.name for path in parlour.home.rglob(f"{session.transcript}.t*.jsonl")]
        assert len(archives) == 1
        folder = next(parlour.home.rglob("sessions"))
        assert "old words" in next(folder.glob(f"{session.transcript}.*")).read_text()
        assert (await parlour.app.store.journal.session(KEY)).transcript != session.transcript
        scope = (await parlour.app.store.records.sessions())[0].scope
        jobs = [
            job for job in await parlour.app.store.jobs.pending_in(scope) if job.payload.get("prompt") == "summarise"
        ]
        assert [job.payload["transcript"] for job in jobs] == [session.transcript]
        await parlour.channel.ask("c", "new words")
        answers = [each for each in model.asked if each.purpose == "answer"]
        assert users(answers[1]) == ["new words"]


async def test_retry_answers_the_last_message_again() -> None:
    """A retry is a turn of its own that says what it supersedes; a retry of a retry too; commands are passed over."""
    model = HeldScriptModel()
    async with gateway(model=model) as parlour:
        assert await parlour.channel.ask("c", "/retry") == translate("commands.nothing_to_retry")
        await parlour.channel.ask("c", "hello")
        await parlour.channel.ask("c", "/queue")
        for n in (2, 3):
            assert await parlour.channel.ask("c", "/retry") == translate("commands.retry")
            await model.called(n)
            await parlour.idle()
        assert [users(request)[-1] for request in model.asked] == ["hello"] * 3
        posts = parlour.channel.posts["c"]
        assert [post.text for post in posts if post.text.startswith("answer")] == ["answer 1", "answer 2", "answer 3"]
        original = (await parlour.app.store.records.sessions())[0].key
        journal = parlour.app.store.journal
        last, *_ = await journal.find_turns(TurnQuery(chat=original))
        trace = await journal.trace(last.turn)
        assert trace is not None
        assert trace.record is not None
        first = next(
            line.turn
            for line in await parlour.app.memory.sessions.displayed_messages(KEY, limit=50)
            if line.text == "hello"
        )
        assert trace.record["supersedes"] == first


async def test_status_queue_usage_and_help_answer_while_a_turn_runs() -> None:
    """Commands that tell how things stand never wait behind what they tell about."""
    model = HeldScriptModel(held=[1])
    async with gateway(model=model) as parlour:
        await parlour.channel.say("c", "long")
        await model.called(1)
        await parlour.channel.say("c", "next")
        assert await parlour.channel.ask("c", "/queue") == translate("commands.queue", running=1, waiting=1)
        assert "model stage" in await parlour.channel.ask("c", "/status")
        assert "model call" in await parlour.channel.ask("c", "/usage")
        assert "/timezone" in await parlour.channel.ask("c", "/help")
        assert await parlour.channel.ask("c", "/start") == translate("commands.start")
        model.go(1)
        await parlour.idle()
        assert await parlour.channel.ask("c", "/queue") == translate("commands.queue_empty")


async def test_queue_names_the_tool_at_work() -> None:
    """While a tool works, /queue says which."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool("Dig.", kind=ToolKind.LOOK, name="dig")
    async def dig(_: ToolContext) -> str:
        begun.set()
        await go.wait()
        return "dug"

    async with gateway(model=HeldScriptModel(calls(("dig", "{}"))), tools=[dig]) as parlour:
        _, answer = await parlour.channel.say("c", "dig")
        await begun.wait()
        assert translate("commands.queue_doing", tool="dig") in await parlour.channel.ask("c", "/queue")
        go.set()
        await answer


async def test_a_new_time_zone_takes_a_new_snapshot() -> None:
    """The zone is the chat's from the next message on: in the system prompt and in each message's head."""
    model = HeldScriptModel()
    async with gateway(model=model, environment={"PARLOUR_TIMEZONE": "UTC"}) as parlour:
        await parlour.channel.ask("c", "before")
        assert await parlour.channel.ask("c", "/timezone") == translate("commands.timezone", zone="UTC")
        assert await parlour.channel.ask("c", "/timezone Nowhere/Land") == translate(
            "commands.timezone_unknown", zone="Nowhere/Land"
        )
        assert await parlour.channel.ask("c", "/timezone Asia/Kolkata") == translate(
            "commands.timezone_set", zone="Asia/Kolkata"
        )
        await parlour.channel.ask("c", "after")
        await parlour.channel.ask("c", "later")
        systems = [str(request.messages[0]["content"]) for request in model.asked]
        assert "zone UTC" in systems[0]
        assert "zone Asia/Kolkata" in systems[1]
        assert systems[2] == systems[1]
        assert " IST" in str(model.asked[1].messages[-1]["content"])
        assert " UTC" in str(model.asked[1].messages[1]["content"])


async def test_a_private_answer_in_a_group_is_its_askers_alone() -> None:
    """/usage in a shared chat is seen by who asked, and stands in no transcript; refusals too."""
    model = HeldScriptModel()
    async with gateway(model=model, policy=OPEN) as parlour:
        await parlour.channel.say("g", "hello", group=True)
        text = await parlour.channel.ask("g", "/usage", sender="bob", group=True)
        assert "model call" in text
        refused = await parlour.channel.ask("g", "/timezone Europe/Berlin", sender="bob", group=True)
        assert refused == translate("commands.only_admin", command="timezone")
        await parlour.idle()
        seen = {post.text: post.visible_to for post in parlour.channel.posts["g"]}
        assert seen[text] == "bob"
        assert seen[refused] == "bob"
        assert seen["answer 1"] == ""
        stored = "".join(path.read_text() for path in parlour.home.rglob("*.jsonl"))
        assert "/usage" in stored
        assert "model call" not in stored
        assert text not in [line for _, line in await history(parlour.app, "g")]


async def test_unknown_commands_and_what_only_looks_like_one() -> None:
    """A near miss is asked about, a far one pointed to /help; paths and other bots' commands go to the model."""
    model = HeldScriptModel()
    async with gateway(model=model) as parlour:
        assert await parlour.channel.ask("c", "/stats") == translate(
            "commands.did_you_mean", name="stats", near="status"
        )
        assert await parlour.channel.ask("c", "/frobnicate") == translate("commands.unknown", name="frobnicate")
        for n, text in enumerate(["/etc/passwd is readable", "/new@other_bot", "!important"], 1):
            assert await parlour.channel.ask("c", text) == f"answer {n}"


async def test_a_command_that_breaks_is_told_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in a command leaves one line and no row that would come again at each start."""
    async with gateway(model=HeldScriptModel()) as parlour:

        async def broken() -> dict[str, object]:
            raise ZeroDivisionError

        monkeypatch.setattr(type(parlour.app.background), "work", lambda _: broken())
        text = await parlour.channel.ask("c", "/status")
        assert text.startswith(translate("failures.bug"))
        await parlour.idle()
        story = await parlour.app.store.journal.trace(text.rpartition("(ref ")[2].rstrip(")"))
        assert story is not None
        assert [row["state"] for row in story.inbox] == ["dead"]


async def test_history_shows_what_people_saw_in_its_order() -> None:
    """User lines, answers, commands with their replies, notices, and what waits; the page's own ids come back."""
    model = HeldScriptModel(held=[2])
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("c", "hello", number="1")
        await parlour.channel.ask("c", "/queue", number="2")
        await parlour.channel.say("c", "wait", number="3")
        await model.called(2)
        await parlour.channel.say("c", "and this", number="4")
        lines = await parlour.app.memory.sessions.displayed_messages(KEY, limit=100)
        assert [(line.role, line.text, line.message_id, line.state) for line in lines] == [
            ("user", "hello", "1", "done"),
            ("assistant", "answer 1", "", "done"),
            ("user", "/queue", "2", "done"),
            ("command", translate("commands.queue_empty"), "", "done"),
            ("user", "wait", "3", "waiting"),
            ("user", "and this", "4", "waiting"),
        ]
        await parlour.app.session_files.flush()
        assert await parlour.app.memory.sessions.displayed_messages(KEY, limit=100) == lines
        await parlour.channel.say("c", "/stop", number="5")
        await parlour.idle()
        roles = [line.role for line in await parlour.app.memory.sessions.displayed_messages(KEY, limit=100)]
        assert roles.count("notice") == 1
        assert len({line.id for line in await parlour.app.memory.sessions.displayed_messages(KEY, limit=100)}) == len(
            roles
        )


async def test_memory_of_one_session_is_a_delta_in_another(tmp_path: Path) -> None:
    """What one chat of a person has learnt is a note in their other chat's next turn, also when that turn fails."""
    fact = json.dumps({"fact": "Ann likes tea"})
    model = HeldScriptModel("hi", calls(("remember", fact)), "noted", "fine")
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("one", "hello")
        await parlour.channel.ask("two", "remember that I like tea")
        await parlour.channel.say("one", "and?")
        await parlour.idle()
        said = users(model.asked[3])
        assert any("Ann likes tea" in text and text.startswith("[memory]") for text in said)
        assert model.asked[3].messages[:3] == [*model.asked[0].messages, {"role": "assistant", "content": "hi"}]


async def test_a_delta_survives_a_turn_that_was_never_stored() -> None:
    """A turn that breaks after it read the news does not swallow them: the next one is told."""
    fact = json.dumps({"fact": "Ann likes tea"})

    class BrokenModel(HeldScriptModel):
        async def complete(self, request: object, *, sink: object = None) -> object:  # type: ignore[override]
            if len(self.asked) == 3:
                self.asked.append(request)  # type: ignore[arg-type]
                raise KeyError("a bug")
            return await super().complete(request, sink=sink)  # type: ignore[arg-type]

    model = BrokenModel("hi", calls(("remember", fact)), "noted", "broken", "fine")
    async with gateway(model=model) as parlour:
        await parlour.channel.ask("one", "hello")
        await parlour.channel.ask("two", "remember that I like tea")
        await parlour.channel.ask("one", "and?")
        await parlour.channel.ask("one", "and now?")
        assert any(text.startswith("[memory]") for text in users(model.asked[4]))


async def test_a_text_of_ours_lands_in_the_scope_of_its_chat() -> None:
    """`parlour send` speaks as whom the chat belongs to: a group's scope in a group, the person's in a direct chat."""
    model = HeldScriptModel()
    async with gateway(model=model, policy=OPEN) as parlour:
        await parlour.channel.say("g", "hello", group=True)
        await parlour.channel.say("d", "hello", sender="ann")
        await parlour.idle()
        for chat in ("g", "d", "g/12"):
            await parlour.app.submit(SessionKey("pocket", chat), "news")
        await parlour.idle()
        scopes = {str(row.key): row.scope for row in await parlour.app.store.records.sessions()}
        assert scopes["pocket:g"] == scopes["pocket:g/12"] == "chats/pocket%3ag"
        assert scopes["pocket:d"] == "people/pocket%3aann"
        for unseen in ("-100", "x/1"):
            with pytest.raises(UserError, match="has no messages yet"):
                await parlour.app.submit(SessionKey("pocket", unseen), "news")
