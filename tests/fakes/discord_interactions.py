"""Application commands and interactions of the small Discord (docs: "Receiving and Responding to Interactions").

A first answer within three seconds, or the token is worth nothing; then fifteen minutes of edits and follow-ups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.fakes.discord_records import ADMIN_ROLE, BOT, GUILD, FakeDiscordRefusal, checked, checked_components

if TYPE_CHECKING:
    from tests.fakes.discord_server import DiscordServer

FIRST_WITHIN = timedelta(seconds=3)
LASTS = timedelta(minutes=15)
_EPHEMERAL = 1 << 6
_NAME = re.compile(r"[-_a-z0-9]{1,32}\Z")


@dataclass(slots=True)
class FakeInteraction:
    """One use of a command or a button, and what its user saw of it."""

    id: str
    token: str
    at: datetime
    channel: str
    user: str
    message: str = ""  # of a button
    acknowledged: int = 0  # the callback's type
    is_ephemeral: bool = False
    original: str | None = None  # what took the place of "is thinking"
    follow_ups: list[tuple[str, bool]] = field(default_factory=list)  # text, ephemeral
    is_deleted: bool = False
    stands: str = ""  # the message everybody sees, where it is not ephemeral

    @property
    def is_thinking(self) -> bool:
        """Say whether its user still sees that we think."""
        return self.acknowledged == 5 and self.original is None and not self.is_deleted


class FakeInteractions:
    """All of them."""

    def __init__(self, discord: DiscordServer) -> None:
        self._discord = discord
        self.registered: dict[str, list[dict[str, Any]]] = {}  # "" = everywhere, else of a guild
        self.registrations = 0
        self.made: list[FakeInteraction] = []
        self._payloads: dict[str, dict[str, Any]] = {}

    # What people do.

    def use(
        self, channel: str, user: str, name: str, text: str = "", among: Mapping[str, Any] | None = None
    ) -> FakeInteraction:
        """Let *user* choose a command, which must be registered; *among* others has the fields of such a chat."""
        known = [*self.registered.get("", ()), *self.registered.get(GUILD, ())]
        command = next(each for each in known if each["name"] == name)
        options = [{"name": command["options"][0]["name"], "type": 3, "value": text}] if text else []
        return self._make(channel, user, 2, {"id": "1", "name": name, "type": 1, "options": options}, among=among)

    def press(self, message: str, user: str, value: str) -> FakeInteraction:
        """Let *user* press a button of one of our messages."""
        channel, _ = self._discord.find(message)
        return self._make(channel, user, 3, {"custom_id": value, "component_type": 2}, message)

    def repeat(self, interaction: FakeInteraction) -> None:
        """Deliver it once more, as a resumed session does."""
        self._discord.gateway.dispatch("INTERACTION_CREATE", self._payloads[interaction.id], guild=True, needs=0)

    def _make(
        self,
        channel: str,
        user: str,
        kind: int,
        data: dict[str, Any],
        message: str = "",
        *,
        among: Mapping[str, Any] | None = None,
    ) -> FakeInteraction:
        discord = self._discord
        made = FakeInteraction(
            discord.snowflake(), f"aW50ZXJhY3Rpb24-{discord.snowflake()}", discord.now(), channel, user
        )
        made.message = message
        self.made.append(made)
        place = (among or {}).get("channel") or discord.channels[channel]
        who: dict[str, Any] = {"user": discord.users[user]}
        if "guild_id" in place:
            member = discord.members[user]
            rights = "32" if ADMIN_ROLE in member["roles"] else "0"
            who = {"member": {"user": discord.users[user], **member, "permissions": rights}, "guild_id": GUILD}
        if message:
            who["message"] = discord.find(message)[1]
        payload = {
            "id": made.id, "application_id": BOT, "type": kind, "data": data, "token": made.token, "version": 1,
            "channel": place, "channel_id": channel, "locale": "en-US", "app_permissions": "0",
            "context": 0 if "guild_id" in place else 1, **who, **(among or {}),
        }  # fmt: skip
        self._payloads[made.id] = payload
        discord.gateway.dispatch("INTERACTION_CREATE", payload, guild="guild_id" in place, needs=0)
        return made

    # What the bot does.

    def register(self, app: str, where: list[str], commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Overwrite all commands of a place."""
        if app != BOT:
            raise FakeDiscordRefusal(403, 20012, "You are not authorized to perform this action on this application")
        for each in commands:
            texts = [each["description"], *(option["description"] for option in each.get("options", ()))]
            if not _NAME.match(each["name"]) or not all(1 <= len(text) <= 100 for text in texts):
                raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
        if len(commands) > 100 or len({each["name"] for each in commands}) != len(commands):
            raise FakeDiscordRefusal(400, 50035, "Invalid Form Body")
        self.registered[where[1] if where else ""] = commands
        self.registrations += 1
        return commands

    def answer(self, method: str, words: list[str], body: dict[str, Any]) -> Any:
        """Answer a callback, an edit of the first answer, or a follow-up."""
        match method, words:
            case "POST", ["interactions", ident, token, "callback"]:
                return self._acknowledge(ident, token, body)
            case "PATCH", ["webhooks", app, token, "messages", "@original"] if app == BOT:
                return self._edit(self._held(token), body)
            case "DELETE", ["webhooks", app, token, "messages", "@original"] if app == BOT:
                self._held(token).is_deleted = True
                return None
            case "POST", ["webhooks", app, token] if app == BOT:
                return self._follow_up(self._held(token), body)
        raise FakeDiscordRefusal(404, 0, "404: Not Found")

    def _acknowledge(self, ident: str, token: str, body: dict[str, Any]) -> None:
        made = next((each for each in self.made if (each.id, each.token) == (ident, token)), None)
        if made is None or self._discord.now() - made.at > FIRST_WITHIN:
            raise FakeDiscordRefusal(404, 10062, "Unknown interaction")
        if made.acknowledged:
            raise FakeDiscordRefusal(400, 40060, "Interaction has already been acknowledged.")
        made.acknowledged = body["type"]
        made.is_ephemeral = bool((body.get("data") or {}).get("flags", 0) & _EPHEMERAL)

    def _held(self, token: str) -> FakeInteraction:
        made = next((each for each in self.made if each.token == token), None)
        if made is None or not made.acknowledged:
            raise FakeDiscordRefusal(404, 10015, "Unknown Webhook")
        if self._discord.now() - made.at > LASTS:
            raise FakeDiscordRefusal(401, 50027, "Invalid Webhook Token")
        return made

    def _edit(self, made: FakeInteraction, body: dict[str, Any]) -> dict[str, Any]:
        if made.is_deleted:
            raise FakeDiscordRefusal(404, 10008, "Unknown Message")
        if made.message:  # of a press, the message that the button is below
            _, message = self._discord.find(made.message)
            message["components"] = checked_components(body)
            self._discord.tell("MESSAGE_UPDATE", made.channel, message)
            return message
        return self._put_original(made, checked(body))

    def _follow_up(self, made: FakeInteraction, body: dict[str, Any]) -> dict[str, Any]:
        text = checked(body)
        if made.is_thinking:
            # The first follow-up takes the place of "is thinking", and is as private as that was.
            return self._put_original(made, text)
        is_ephemeral = bool(body.get("flags", 0) & _EPHEMERAL)
        made.follow_ups.append((text, is_ephemeral))
        return self._message(made, text, ephemeral=is_ephemeral)

    def _put_original(self, made: FakeInteraction, text: str) -> dict[str, Any]:
        made.original = text
        if made.stands:
            _, message = self._discord.find(made.stands)
            message["content"] = text
            return message
        message = self._message(made, text, ephemeral=made.is_ephemeral)
        made.stands = "" if made.is_ephemeral else str(message["id"])
        return message

    def _message(self, made: FakeInteraction, text: str, *, ephemeral: bool) -> dict[str, Any]:
        message = self._discord.write(made.channel, BOT, text, flags=_EPHEMERAL if ephemeral else 0)
        message |= {"application_id": BOT, "webhook_id": BOT}
        if not ephemeral:
            self._discord.store(made.channel, message)
        return message
