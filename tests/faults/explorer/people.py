"""The people of the explorer: what they type, what they read in the replies, and what must be true after it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from gateway.events import InboundKind, edit_revision
from tests.fakes.account_linking import CODE
from tests.fakes.isolation_canaries import CANARY
from tests.faults.explorer.gateway_team import ExploredGateway, eventually
from tests.faults.explorer.steps import ExplorerStep
from tests.faults.explorer.truth import Erasure, LinkState, Presence, SentMessage, SpokenWord, Truth
from tests.faults.explorer.wire_platform import WirePlatform

REPLY_SECONDS = 60.0
_RECEIVE_SECONDS = 15.0
_RECENT = 12  # words and messages that a person comes back to
_SAID_AGAIN = 0.4
_APPROVE = re.compile(r"/memory approve (\w+)")
_CHANGE = re.compile(r"^- `(\w+)`.*?: (.*)$", re.MULTILINE)  # of /memory log
_DIFF = re.compile(r"^([-+])- (.*)$", re.MULTILINE)
Fields = Mapping[str, Any]


class People:
    """Takes the steps of people; one account does one thing at a time."""

    def __init__(
        self, truth: Truth, platform: WirePlatform, gateways: Sequence[ExploredGateway], trace: Callable[..., None]
    ) -> None:
        self._truth = truth
        self._platform = platform
        self._gateways = gateways
        self._trace = trace
        self._numbers = count(1)
        self._left: Sequence[str] = ()  # to do, when a link was last looked at
        self._locks: dict[str, asyncio.Lock] = {}
        self._words: dict[str, list[str]] = {}
        self._sent: dict[str, list[tuple[SentMessage, Fields]]] = {}  # what is no command
        self._typed: dict[str, list[Fields]] = {}  # everything
        self._acts: Mapping[str, Callable[[str, ExplorerStep], Awaitable[str]]] = {
            "talk": self._talk, "remember": self._remember, "undo": self._undo, "correct": self._correct,
            "purge": self._erase, "forget": self._erase, "stop": self._stop, "edit": self._edit,
            "delete": self._delete, "redeliver": self._redeliver, "new": self._new, "hand": self._edit_by_hand,
        }  # fmt: skip

    async def act(self, step: ExplorerStep) -> None:
        """Take *step*; return when its replies have come."""
        names = [step.actor]
        if step.action == "link":
            pair = self._truth.pair_of(step.actor)
            if pair is None:
                return
            names = sorted(pair.accounts)
        for name in names:
            await self._locks.setdefault(name, asyncio.Lock()).acquire()
        try:
            act = self._link if step.action == "link" else self._acts[step.action]
            self._trace(step.number, step.actor, step.action, await act(step.actor, step))
        finally:
            for name in names:
                self._locks[name].release()

    # -- the platform's side ---------------------------------------------------------------

    async def _say(
        self, chat: str, text: str, step: ExplorerStep, *, token: str = "", is_control: bool = False
    ) -> SentMessage:
        """Write *text*; return when a gateway has stored it."""
        number = f"{next(self._numbers):012d}"
        message = self._truth.send(number, chat, token)
        fields = {"chat": chat, "text": text, "number": number, **self._sender(chat, step)}
        if token:
            self._sent.setdefault(chat, []).append((message, fields))
        self._typed.setdefault(chat, []).append(fields)
        verdict = await self._deliver(fields, step)
        if verdict != "accepted":
            message.must_answer = False
        elif is_control:
            message.must_answer = False  # it is answered beside the queue, or by the turn that it stops
        else:
            self._truth.accept(message)
        return message

    def _sender(self, chat: str, step: ExplorerStep) -> Fields:
        sender = "ann1" if chat.startswith("-") and step.picks[3] < 0.5 else "bob1" if chat.startswith("-") else chat
        group = {"group": True, "is_admin": True, "is_addressed": True} if chat.startswith("-") else {}
        at = datetime.now(UTC).isoformat()
        return {"sender": sender, "name": sender, "sent_at": at, "kind": InboundKind.MESSAGE.value, **group}

    async def _deliver(self, fields: Fields, step: ExplorerStep) -> str:
        """Hand a message to one gateway after the other until one confirms it; return the verdict."""
        turn = step.pick(2, len(self._gateways))
        while True:
            gateway = self._gateways[turn % len(self._gateways)]
            turn += 1
            if gateway.line is not None:
                try:
                    async with asyncio.timeout(_RECEIVE_SECONDS):
                        if verdict := await gateway.line.call("receive", **fields):
                            return str(verdict)
                except (TimeoutError, ConnectionError):
                    pass  # it may have stored it: the next one has the same number
            await asyncio.sleep(0.05)

    async def _ask(self, chat: str, text: str, step: ExplorerStep, *, is_control: bool = False) -> str:
        """Write a command; return the reply, or "" if there was none in time."""
        message = await self._say(chat, text, step, is_control=is_control)
        return await self._platform.reply(message.number, REPLY_SECONDS)

    # -- what people do --------------------------------------------------------------------

    def _word(self, chat: str, step: ExplorerStep) -> str:
        """Return a word to talk of: a recent one that was not erased, or a new one."""
        known = self._alive(chat)
        if known and step.picks[0] < _SAID_AGAIN:
            return known[step.pick(1, len(known))]
        word = self._truth.new_word(chat)
        self._words.setdefault(chat, []).append(word)
        return word

    def _alive(self, chat: str) -> list[str]:
        words: Mapping[str, SpokenWord] = self._truth.words
        return [each for each in self._words.get(chat, ()) if words[each].erasure is Erasure.NONE][-_RECENT:]

    async def _talk(self, chat: str, step: ExplorerStep) -> str:
        return (await self.talk(chat, step)).token

    async def talk(self, chat: str, step: ExplorerStep) -> SentMessage:
        """Say something; return when it is stored."""
        token, word = f"m{step.number}q", self._word(chat, step)
        return await self._say(chat, f"{token} I talk of {word}", step, token=token)

    async def _remember(self, chat: str, step: ExplorerStep) -> str:
        word = self._word(chat, step)
        text = f"fact {step.number} is {word}"
        self._truth.remember(text, chat, word)
        reply = await self._ask(chat, f"/remember {text}", step)
        if reply.startswith("I will remember"):
            self._truth.settle(text, Presence.YES)
        return f"{text} -> {reply[:40]}"

    async def _undo(self, chat: str, step: ExplorerStep) -> str:
        changes = _CHANGE.findall(await self._ask(chat, "/memory log", step))
        own = [sha for sha, first in changes if self._is_own(chat, CANARY.findall(first))]
        if not own:
            return "nothing to undo"
        sha = own[step.pick(1, len(own))]
        shown = _DIFF.findall(await self._ask(chat, f"/memory diff {sha}", step))
        if not shown or any(line not in self._truth.lines for _, line in shown):
            return f"{sha} is not about own facts"
        if not self._is_own(chat, [self._truth.lines[line].word for _, line in shown]):
            return f"{sha} is erased by now"
        before = {line: self._truth.lines[line].presence for _, line in shown}
        for line in before:
            self._truth.settle(line, Presence.MAYBE)
        reply = await self._ask(chat, f"/memory undo {sha}", step)
        for sign, line in shown:
            if reply.startswith("Undone"):
                self._truth.settle(line, Presence.NO if sign == "+" else Presence.YES)
            elif reply.startswith("Later changes"):
                self._truth.settle(line, before[line])
        return f"{sha} {shown} -> {reply[:40]}"

    def _is_own(self, chat: str, words: Sequence[str]) -> bool:
        found = [self._truth.words.get(word) for word in words]
        return bool(found) and all(
            each is not None and each.owner == chat and each.erasure is Erasure.NONE for each in found
        )

    async def _correct(self, chat: str, step: ExplorerStep) -> str:
        lines = self._truth.lines
        own = [text for text, each in lines.items() if each.account == chat and each.presence is Presence.YES]
        if not own:
            return "nothing to correct"
        old, word = own[step.pick(0, len(own))], self._truth.new_word(chat)
        new = f"fact {step.number} is {word}"
        self._truth.remember(new, chat, word)
        self._truth.settle(old, Presence.MAYBE)
        reply = await self._ask(chat, f"/memory correct {old} => {new}", step)
        if reply.startswith("Corrected"):
            self._truth.settle(old, Presence.NO)
            self._truth.settle(new, Presence.YES)
        elif reply.startswith("This line cannot"):
            self._truth.settle(old, Presence.YES)
            self._truth.settle(new, Presence.NO)
        return f"{old} => {new} -> {reply[:40]}"

    async def _erase(self, chat: str, step: ExplorerStep) -> str:
        words = self._alive(chat)
        if not words:
            return "nothing to erase"
        word = words[step.pick(0, len(words))]
        end, erasure = (" --purge", Erasure.PURGED) if step.action == "purge" else ("", Erasure.FORGOTTEN)
        preview = await self._ask(chat, f"/forget {word}{end}", step)
        found = _APPROVE.search(preview)
        if found is None:
            return f"{word} -> {preview[:60]}"
        if erasure is Erasure.FORGOTTEN:  # only a purge reaches what is being answered at that moment
            for message, _ in self._sent.get(chat, ()):
                if message.must_answer and not message.is_deleted:
                    await self._platform.reply(message.number, REPLY_SECONDS)
        self._truth.erase(word, Erasure.ASKED)
        reply = await self._ask(chat, f"/memory approve {found[1]}", step, is_control=True)
        if reply.startswith("Done. Erased"):
            self._truth.erase(word, erasure)
        return f"{word} -> {reply[:70]}"

    async def _stop(self, chat: str, step: ExplorerStep) -> str:
        message = await self._say(chat, "/stop", step, is_control=True)
        self._truth.stop(chat)
        return message.number

    async def _edit(self, chat: str, step: ExplorerStep) -> str:
        sent = [each for each in self._sent.get(chat, ())[-_RECENT:] if not each[0].is_deleted]
        if not sent:
            return "nothing to edit"
        message, fields = sent[step.pick(0, len(sent))]
        word = self._truth.new_word(chat)
        self._words.setdefault(chat, []).append(word)
        text = f"{message.token} I talk of {word} instead"
        revision = edit_revision(str(datetime.now(UTC).timestamp()), text)
        await self._deliver({**fields, "text": text, "revision": revision}, step)
        return f"{message.token} to {word}"

    async def _delete(self, chat: str, step: ExplorerStep) -> str:
        sent = [each for each in self._sent.get(chat, ())[-_RECENT:] if not each[0].is_deleted]
        if not sent:
            return "nothing to delete"
        message, fields = sent[step.pick(0, len(sent))]
        if not message.parts:
            message.must_answer = False
        await self._deliver({**fields, "text": "", "kind": InboundKind.DELETION.value}, step)
        message.is_deleted = True
        return message.token

    async def _redeliver(self, chat: str, step: ExplorerStep) -> str:
        typed = self._typed.get(chat, ())
        if not typed:
            return "nothing to redeliver"
        fields = typed[step.pick(0, len(typed))]
        return f"{fields['text'][:40]} -> {await self._deliver(fields, step)}"

    async def _new(self, chat: str, step: ExplorerStep) -> str:
        return (await self._ask(chat, "/new", step))[:40]

    async def _edit_by_hand(self, chat: str, step: ExplorerStep) -> str:
        """Add a line to MEMORY.md with an editor that writes in place, or by a rename."""
        pair = self._truth.pair_of(chat)
        if pair is not None:  # a line of a file that two accounts share is of neither, after an unlink too
            return "a file of a pair"
        gateway = self._gateways[step.pick(2, len(self._gateways))]
        file = document_of(gateway.home, chat)
        if not file.exists():
            return "no document"
        word = self._truth.new_word(chat)
        text = f"fact {step.number} is {word}"
        self._truth.remember(text, chat, word, is_by_hand=True)
        before = file.read_text("utf-8")
        after = before + ("" if before.endswith("\n") or not before else "\n") + f"- {text}\n"
        if step.picks[0] < 0.5:
            file.write_text(after, "utf-8")
        else:
            beside = file.with_name("edited-by-hand.tmp")
            beside.write_text(after, "utf-8")
            beside.rename(file)
        # With several gateways, one that another has overtaken drops it (docs/scale.md).
        self._truth.settle(text, Presence.YES if len(self._gateways) == 1 else Presence.MAYBE)
        return f"{file.name} of {file.parents[1].name} at {gateway.name}: {text}"

    # -- links -----------------------------------------------------------------------------

    async def _link(self, chat: str, step: ExplorerStep) -> str:
        pair = self._truth.pair_of(chat)
        assert pair is not None
        (other,) = pair.accounts - {chat}
        was, pair.state = pair.state, LinkState.CHANGING
        if was is LinkState.LINKED:
            reply = await self._ask(chat, "/unlink", step)
            done, becomes = "will be a separate person" in reply, LinkState.APART
        else:
            code = CODE.search(await self._ask(chat, "/link", step))
            if code is None:
                pair.state = was
                return "no code"
            await self._ask(other, f"/link {code[1]}", step)
            await self._ask(other, "/link yes", step)
            reply = await self._ask(chat, "/link yes", step)
            done, becomes = reply.startswith("Both accounts confirmed"), LinkState.LINKED
        if not done:
            return f"{was} -> ? {reply[:60]}"
        if not await eventually(self._are_links_settled, REPLY_SECONDS):
            self._truth.fail("rest", "a minute after a link or unlink this is left:", self._left)
        pair.state, pair.changed_at = becomes, self._truth.tick()
        return f"{was} -> {becomes}"

    async def _are_links_settled(self) -> bool:
        """Return True if no gateway that runs has to move accounts; a job is due by the clock of whoever queued it."""
        has_asked = False
        for gateway in self._gateways:
            if gateway.line is None:
                continue
            try:
                async with asyncio.timeout(_RECEIVE_SECONDS):
                    self._left = await gateway.line.call("pending")
            except (TimeoutError, ConnectionError):
                return False
            if any(each.startswith(("job link", "job unlink", "accounts", "the store")) for each in self._left):
                return False
            has_asked = True
        return has_asked

    # -- at the end ------------------------------------------------------------------------

    async def memory_of(self, chat: str, step: ExplorerStep) -> str:
        """Return what the gateway says that it remembers."""
        return await self._ask(chat, "/memory", step)


def document_of(home: Path, account: str) -> Path:
    """Return where MEMORY.md of an account or a group is."""
    folder = f"chats/wire%3a{account}" if account.startswith("-") else f"people/wire%3a{account}"
    return home / folder / "memory/MEMORY.md"
