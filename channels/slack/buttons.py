"""Pressed buttons whose answer is on its way: when it says that the matter is settled, their row goes.

What is held here is for that moment only: after a restart a button stays, and pressing it again is told what happened.
"""

from __future__ import annotations

from collections import OrderedDict

from channels.slack.codec import SlackButtonPress
from channels.slack.reactions import SlackReactions
from gateway.events import InboundMessage, MessagePart, turn_id

_KEPT = 500


class SlackButtons:
    """The presses of one workspace."""

    def __init__(self, errands: SlackReactions) -> None:
        self._errands = errands
        self._held: OrderedDict[str, SlackButtonPress] = OrderedDict()  # by the turn that answers it

    def hold_press(self, message: InboundMessage, press: SlackButtonPress) -> None:
        """Hold a press that was admitted and stored."""
        self._held[turn_id(message)] = press
        while len(self._held) > _KEPT:
            self._held.popitem(last=False)

    def answered(self, part: MessagePart) -> None:
        """Notice that *part* stands: if it settles a press, the row of buttons goes."""
        press = self._held.pop(part.turn, None)
        if press is None or not part.settles:
            return
        if press.response_url:
            # Of a message that one person alone sees, Slack tells nothing but where it can be taken away.
            self._errands.delete_ephemeral(press.response_url)
        else:
            self._errands.redraw(press.chat, press.ts, press.text, press.blocks)
