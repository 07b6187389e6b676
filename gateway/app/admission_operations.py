"""What the operator can ask about the door: who was not heard and why, who waits to be let in, and deciding it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway.access import codes
from gateway.access.refusal_reasons import explain_refusal
from gateway.control import Line
from gateway.errors import UserError
from gateway.operations import Operation, plain
from gateway.ports.access import OPERATOR, DecisionActor
from gateway.ports.pairing import Outcome, PairingDecision, PairingLocked, PairingRequest

if TYPE_CHECKING:
    from gateway.app.app import GatewayApp


class AdmissionOperations:
    """The operations `why` and `people pending|approve|deny`."""

    def __init__(self, app: GatewayApp) -> None:
        self._app = app
        self._started_at = datetime.now(UTC)

    def by_name(self) -> Mapping[str, Operation]:
        """Return them by name."""
        return {
            "why": self.why,
            "people pending": self.pending,
            "people approve": self.approve,
            "people deny": self.deny,
        }

    async def why(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield first what can be known at all, then a line per refusal of the channel and person or chat."""
        channel, ident = str(arguments.get("channel", "")), str(arguments.get("id", ""))
        kinds = self._app.kinds
        if channel and channel not in kinds:
            raise UserError(f"there is no channel called {channel}; there are: {', '.join(sorted(kinds))}")
        hears = self._app.readiness()
        yield {
            "running": bool(self._app.channels),
            "since": plain(self._started_at),
            "hears": {name: state for name, state in hears.items() if channel in ("", name)},
            "refused_by": {name: str(line) for name, line in self._app.supervisor.refusals().items()},
        }
        for refused in self._app.refusals.recent(channel, ident):
            explained = explain_refusal(refused)
            yield {**plain(refused), "words": explained.words, "paste": list(explained.paste)}

    async def pending(self, _: Line) -> AsyncIterator[Line]:
        """Yield a line per person and place that waits."""
        for waiting in self._app.people.pairing.pending_requests():
            yield plain(waiting)

    async def approve(self, arguments: Line) -> AsyncIterator[Line]:
        """Let in whoever has this code, or is named channel:id."""
        yield await self._decide(arguments, is_yes=True)

    async def deny(self, arguments: Line) -> AsyncIterator[Line]:
        """Say no to whoever is named channel:id, or by the code."""
        yield await self._decide(arguments, is_yes=False)

    async def _decide(self, arguments: Line, *, is_yes: bool) -> Line:
        wanted = str(arguments.get("who", "")).strip()
        pairing = self._app.people.pairing
        decider = DecisionActor(by=OPERATOR, where="", id=f"c{secrets.token_hex(8)}")
        found = next((each for each in pairing.pending_requests() if wanted in (_name(each), each.ref)), None)
        outcome: Outcome
        if found is not None:
            outcome = await pairing.by_ref(found.ref, decider, is_yes=is_yes)
        elif codes.parse_code(wanted):
            outcome = await pairing.by_code(wanted, decider, is_yes=is_yes)
        else:
            raise UserError(f"nobody called {wanted!r} waits; `parlour people pending` shows who does")
        if isinstance(outcome, PairingLocked):
            raise UserError(
                f"too many wrong codes: none is looked at for {outcome.minutes} minutes; `parlour people pending`"
                " shows who waits, and channel:id decides without a code"
            )
        if not isinstance(outcome, PairingDecision):
            raise UserError("nobody waits under that code: it was decided, its hour is over, or it is misspelt")
        return {"who": _name(outcome.waiting), "name": outcome.waiting.name, "yes": outcome.is_yes}


def _name(waiting: PairingRequest) -> str:
    return f"{waiting.channel}:{waiting.who}"
