"""Sign in, read with a token that is renewed, act after a question: the gateway killed behind every change and call.

The gateway runs once, and its home is copied behind every transaction, around every send, and around every request for
tokens and every act at the service. The service is outside: what it gave and did stays, as it is at that moment. Each
copy is started and brought to the end of the same life; some are killed a second time there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp.server.auth.provider import AuthorizationCode, RefreshToken
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.events import InboundKind
from tests.e2e.agent.test_mcp_logins import ANYBODY, CREATE, MINE, open_page, set_up, typed
from tests.e2e.agent.test_reminders import ToldModel
from tests.fakes.forked_mcp import forked_children as forked_children
from tests.fakes.home_copies import HomeCopies, HomeCopy, spread
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.oauth_mcp import AuthorizationServer, oauth_mcp_server
from tests.faults.matrix import IS_FULL

pytestmark = pytest.mark.usefixtures("forked_children")

READ, ACT = "what are my issues?", "create the issue"
SIGN_IN, UNKNOWN = "sign in", "It is not known whether these steps completed"
_STATE = ("user", "lifetime", "clients", "codes", "refreshes", "accesses")
KILLS = 7  # all of them: `CROSSINGS=full`


class Service(AuthorizationServer):
    """Calls *take* before and after each change of what it has given, and counts how often a token is exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.take: Callable[[], None] = lambda: None
        self.exchanged: dict[str, int] = {}

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        self.take()
        found = await super().exchange_authorization_code(client, authorization_code)
        self.take()
        return found

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.take()
        self.exchanged[refresh_token.token] = self.exchanged.get(refresh_token.token, 0) + 1
        found = await super().exchange_refresh_token(client, refresh_token, scopes)
        self.take()
        return found


class Issues(list[tuple[str, str]]):
    """What was created at the service; *take* is called before and after it."""

    take: Callable[[], None] = staticmethod(lambda: None)

    def append(self, issue: tuple[str, str]) -> None:
        """Create one."""
        self.take()
        super().append(issue)
        self.take()


class IssueModel(ToldModel):
    """Reads or creates what the person asks for, and repeats the result; the same after a kill."""

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Call the tool, or answer with its result."""
        last = request.messages[-1]
        said = str(last["content"])
        wish = (MINE if READ in said else CREATE if ACT in said else None) if last["role"] == "user" else None
        self.queue = [(wish[0], json.loads(wish[1])) if wish else f"I have read: {said[-300:]}"]
        return await super().complete(request, sink=sink)


@dataclass
class SignedLife:
    """Ann signs in, reads when her token has ended, and creates an issue; the steps may have been done before."""

    service: Service
    issues: Issues
    step: int = 0
    passed: timedelta = field(default_factory=timedelta)
    question: str = ""

    def clock(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC) + self.passed

    @property
    def state(self) -> dict[str, Any]:
        """What a copy has to know: of the person, and of the service as it is now."""
        own = {"step": self.step, "passed": self.passed, "question": self.question}
        outside = {name: copy(getattr(self.service, name)) for name in _STATE}
        return own | {"outside": outside, "issues": tuple(self.issues)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a copy."""
        for name in ("step", "question"):
            setattr(self, name, state[name])
        self.passed = state["passed"] + timedelta(minutes=1)  # a lease of the killed process ends
        for name, value in state["outside"].items():
            setattr(self.service, name, copy(value))
        self.issues[:] = state["issues"]
        self.service.exchanged.clear()

    async def live(self, inside: InProcessGateway, parts: dict[str, str]) -> None:
        """Go on with the life."""
        self.service.register(inside.app.logins.redirect("tracker"))
        for step, act in enumerate((self._sign_in, self._read, self._ask, self._press)):
            if step >= self.step:
                self.step = step
                await act(inside, parts)
        assert [each.is_over for each in await inside.app.logins.summaries()] == [False]

    async def _sign_in(self, inside: InProcessGateway, parts: dict[str, str]) -> None:
        """Sign in by a link, until that is done: a link of before a kill leads nowhere."""
        while not [each for each in await inside.app.logins.summaries() if not each.is_over]:
            answer = await inside.channel.ask("ann", "/login tracker", sender="ann")
            found = re.search(r"http\S+", answer)
            assert found, answer
            _, page = await open_page(found[0])
            await inside.channel.ask("ann", typed(page), sender="ann")

    async def _read(self, inside: InProcessGateway, parts: dict[str, str]) -> None:
        """Ask when the token has ended: it is renewed, or its person is told, and signs in again."""
        for _ in range(2):
            self.passed += timedelta(hours=2)
            answer = await inside.channel.ask("ann", READ, sender="ann")
            if "issues of ann@tracker" in answer:
                return
            assert SIGN_IN in answer, answer  # the service replaced the token, and the new one was lost
            await self._sign_in(inside, parts)
        raise AssertionError("signed in, and not let in")

    async def _ask(self, inside: InProcessGateway, parts: dict[str, str]) -> None:
        await inside.channel.say("ann", ACT, sender="ann", number="act")
        await inside.idle()
        questions = await inside.app.store.jobs.pending_of("tool_question")
        if questions:
            self.question = str(questions[0].payload["id"])
        assert self.question

    async def _press(self, inside: InProcessGateway, parts: dict[str, str]) -> None:
        press = f"/tools allow {self.question}"
        for number in ("press", "press again"):
            await inside.channel.say("ann", press, sender="ann", number=number, kind=InboundKind.BUTTON)
            await inside.idle()

    def broken(self, parts: dict[str, str]) -> str:
        """Return which promise is broken; "" if none is."""
        texts = sorted(parts.values())
        is_unknown = any(UNKNOWN in text or "it may have happened" in text for text in texts)
        if len(self.issues) != 1 and not (is_unknown and not self.issues):
            return f"created {len(self.issues)} times, unknown: {is_unknown}: {texts}"
        if sum(text.startswith("Allowed: ") for text in texts) != 1:
            return f"not allowed once: {texts}"
        if any(count > 1 for count in self.service.exchanged.values()):
            return "one refresh token was sent twice"
        return ""


@pytest.mark.timeout(0 if IS_FULL else 300)
async def test_killed_at_every_change_an_act_happens_once_and_nobody_is_locked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, or at most once and the person reads that nobody knows; a lost token is said, and a sign-in mends it."""
    service, issues, wrong = Service(), Issues(), list[str]()
    life = SignedLife(service, issues)

    async def lead(folder: str, begin: HomeCopy, *, is_first: bool = False) -> list[HomeCopy]:
        copies = HomeCopies(tmp_path / folder, lambda: life.state)
        parts = dict(begin.parts)
        options: dict[str, Any] = {"policy": ANYBODY, "now": life.clock, "kind": copies.plugin(parts)}
        async with gateway(home=begin.home, model=IssueModel(), **options) as inside:
            if is_first:
                await set_up(inside, service)
                service.user = "ann@tracker"
                parts.clear()  # what the owner said before
            else:
                life.restore(begin.state)
            service.take = issues.take = copies.take
            with copies.recorded(inside, parts, monkeypatch):
                copies.take()
                await life.live(inside, parts)
            service.take = issues.take = lambda: None
        wrong.extend([f"{folder}: {broken}"] if (broken := life.broken(parts)) else [])
        return copies.copies

    async with oauth_mcp_server(service, issues):
        whole = await lead("whole", HomeCopy(tmp_path / "home", {}, None), is_first=True)
        assert len(whole) > 20
        assert service.exchanged
        for n, killed in spread(whole, 1_000 if IS_FULL else KILLS):
            again = await lead(f"killed at {n}", killed)
            for m, twice in spread(again, 1, n):
                await lead(f"killed at {n} and {m}", twice)
    assert not wrong, "\n".join(wrong)
