"""Buttons on Telegram: what is asked, who may press, and what becomes of a press."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.staged_changes import FACT, memory, staged
from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import TelegramPost, TelegramServer, telegram_now

ANN = "people/telegram%3a42"
GROUP = f"chats/telegram%3a{TEAM}"
YES, NO = "/memory approve eaaaaaaaaaaaaaaaa", "/memory reject eaaaaaaaaaaaaaaaa"
STRANGER, BEN = 666, 43


async def asked(server: TelegramServer, chat: int) -> TelegramPost:
    """Return the question once it stands in *chat*, with its buttons."""

    def found() -> list[TelegramPost]:
        return [post for post in server.posts if post.chat == chat and post.buttons]

    await server.until(lambda: bool(found()))
    return found()[-1]


async def test_a_yes_in_a_direct_chat_is_done_once_and_its_buttons_go() -> None:
    """One line with Yes and No; pressed twice and brought twice, it is done once, said, and the keyboard is gone."""
    async with telegram_now() as server, open_gateway(server, InstantModel()) as parlour:
        server.say("hello")
        await server.until(lambda: bool(server.shown(42)))
        await staged(parlour, ANN, "telegram:42")
        post = await asked(server, 42)
        assert post.buttons == [["Yes", "No"]]
        assert FACT in post.text
        assert FACT not in memory(parlour, ANN)
        update = server.buttons.press(post, YES)
        server.push(update)  # the same press once more
        server.buttons.press(post, YES)  # and a second one
        await server.until(lambda: not post.buttons and len(server.shown(42)) >= 4)
        assert memory(parlour, ANN) == f"- {FACT}\n"
        assert [text.split(".")[0] for text in server.shown(42)[2:]] == [
            "Approved",
            "You already approved this",
        ]
        await server.until(lambda: sorted(server.answered) == ["1", "2"])


async def test_a_press_passes_the_answer_that_is_being_written() -> None:
    """While a turn thinks, the press is done and answered (docs/formats.md, Session queues)."""
    model = EchoModel()
    async with telegram_now() as server, open_gateway(server, model) as parlour:
        server.say("hello")
        await server.until(lambda: bool(server.shown(42)))
        await staged(parlour, ANN, "telegram:42")
        post = await asked(server, 42)
        model.go_on.clear()
        model.thinks.clear()
        server.say("think long")
        await model.thinks.wait()
        server.buttons.press(post, NO)
        await server.until(lambda: any(text.startswith("Rejected") for text in server.shown(42)))
        assert not any("think long" in text for text in server.shown(42))
        model.go_on.set()
        await server.until(lambda: any("think long" in text for text in server.shown(42)))


async def test_a_question_does_not_come_into_the_middle_of_an_answer() -> None:
    """It waits in the chat's lane until the answer stands."""
    model = EchoModel()
    async with telegram_now() as server, open_gateway(server, model) as parlour:
        server.say("hello")
        await server.until(lambda: bool(server.shown(42)))
        model.go_on.clear()
        model.thinks.clear()
        server.say("think long")
        await model.thinks.wait()
        await staged(parlour, ANN, "telegram:42")
        assert not [post for post in server.posts if post.buttons]
        model.go_on.set()
        post = await asked(server, 42)
        answer = next(each for each in server.posts if "think long" in each.text)
        assert answer.id < post.id


async def test_in_a_group_admins_decide_and_strangers_are_not_heard() -> None:
    """A stranger's press: no row, no answer. A member's: told so privately, and the buttons stay. An admin's: done.

    The audit has a line of the member's and one of the admin's.
    """
    async with telegram_now() as server:
        group = server.chat(TEAM)
        group.admins = {42}
        server.chat(BEN)
        server.chat(42)
        async with open_gateway(server, InstantModel(), ALLOW_FROM=f"42,{BEN}") as parlour:
            server.say("@parlour_bot hello", chat=TEAM, **mention("@parlour_bot hello"))
            await server.until(lambda: bool(server.shown(TEAM)))
            await staged(parlour, GROUP, f"telegram:{TEAM}")
            post = await asked(server, TEAM)
            server.buttons.press(post, YES, sender=STRANGER)
            await server.until(lambda: not server.updates)
            assert [each.reason for each in parlour.app.refusals.recent("telegram", str(STRANGER))] == ["stranger"]
            assert server.answered == []
            server.buttons.press(post, YES, sender=BEN)
            await server.until(lambda: bool(server.buttons.alerts))
            assert server.buttons.alerts[0] == (
                "2",
                "Only an admin of this chat or an owner of this bot can use /memory approve here.",
            )
            assert post.buttons
            assert memory(parlour, GROUP) == ""
            server.buttons.press(post, YES, sender=42)
            await server.until(lambda: not post.buttons)
            assert memory(parlour, GROUP) == f"- {FACT}\n"
            assert server.buttons.alerts[1][1].startswith("Approved.")
            assert [*server.shown(BEN), *server.shown(42)] == []
            await parlour.idle()
            audit = [(each.by, each.outcome) for each in await parlour.app.store.access.audit(limit=9)]
            assert audit == [("telegram:42", "done"), (f"telegram:{BEN}", "refused")]


async def test_a_press_is_kept_before_telegram_is_told(tmp_path: Path) -> None:
    """A press that was stored when the gateway died is done at the next start, once; the old button then says so."""
    home = tmp_path / "home"
    async with telegram_now() as server:
        async with open_gateway(server, InstantModel(), home) as parlour:
            server.say("hello")
            await server.until(lambda: bool(server.shown(42)))
            await staged(parlour, ANN, "telegram:42")
            post = await asked(server, 42)
            await parlour.idle()
        server.buttons.press(post, YES)  # while nobody is there: Telegram keeps it
        async with open_gateway(server, InstantModel(), home) as parlour:
            await server.until(lambda: not post.buttons)
            assert memory(parlour, ANN) == f"- {FACT}\n"
            server.buttons.press(post, NO)
            await server.until(lambda: any(text.startswith("This was already decided") for text in server.shown(42)))
            assert memory(parlour, ANN) == f"- {FACT}\n"


async def test_several_things_are_one_message_and_each_has_its_row() -> None:
    """Two questions, one message; deciding one leaves the other's buttons."""
    async with telegram_now() as server, open_gateway(server, InstantModel()) as parlour:
        server.say("hello")
        await server.until(lambda: bool(server.shown(42)))
        await staged(parlour, ANN, "telegram:42", asks=False)
        await staged(parlour, ANN, "telegram:42", name="ecccccccccccccccc", fact="Ann sails")
        post = await asked(server, 42)
        assert post.buttons == [["Yes (1)", "No (1)"], ["Yes (2)", "No (2)"]]
        first = post.markup["inline_keyboard"][0][0]["callback_data"]
        server.buttons.press(post, first)
        await server.until(lambda: len(post.buttons) == 1)
        await asyncio.wait_for(parlour.idle(), 60)
        assert len([each for each in server.posts if each.markup]) == 1


async def test_one_of_several_remembered_lines_is_removed_by_a_press() -> None:
    """`/memory drop` lists them with a button each; the pressed one goes, the other stays, and so do the messages."""
    async with telegram_now() as server, open_gateway(server, InstantModel()) as parlour:
        for text in ("/remember green tea in the morning", "/remember black tea at five", "/memory drop tea"):
            server.say(text)
        post = await asked(server, 42)
        assert post.buttons == [["Remove (1)"], ["Remove (2)"]]
        server.buttons.press(post, post.markup["inline_keyboard"][1][0]["callback_data"])
        await server.until(lambda: any(text.startswith("Removed from memory") for text in server.shown(42)))
        await server.until(lambda: post.buttons == [["Remove (1)"]])
        assert memory(parlour, ANN) == "- green tea in the morning\n"
