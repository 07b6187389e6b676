"""Pressed buttons: their row is removed once the answer of the turn settles the question."""

from __future__ import annotations

from channels.kit.parts import PendingPresses
from channels.slack.codec import SlackButtonPress
from channels.slack.reactions import SlackReactions
from gateway.events import MessagePart


class SlackButtons:
    """The pending presses of one workspace."""

    def __init__(self, reactions: SlackReactions) -> None:
        self._reactions = reactions
        self.presses: PendingPresses[SlackButtonPress] = PendingPresses()

    def settle(self, part: MessagePart) -> None:
        """Remove the row of buttons that *part*, which was delivered, settles."""
        press = self.presses.take(part)
        if press is None or not part.settles:
            return
        if press.response_url:
            # Slack tells only one thing about a message that one user sees: the address at which to delete it.
            self._reactions.delete_ephemeral(press.response_url)
        else:
            self._reactions.redraw(press.chat, press.ts, press.text, press.blocks)
