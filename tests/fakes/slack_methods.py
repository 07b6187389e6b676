"""The methods of Slack's Web API, each as strict as Slack about scopes, places and lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.slack_buttons import FakeSlackButtons, checked_blocks
from tests.fakes.slack_files import FileShelf
from tests.fakes.slack_workspace import BOT_ID, BOT_USER, TEAM, FakeSlackChat, SlackError

_HISTORY = {"im": "im:history", "channel": "channels:history", "group": "groups:history", "mpim": "mpim:history"}
_INFO = {"im": "im:read", "channel": "channels:read", "group": "groups:read", "mpim": "mpim:read"}
_LISTED = {"public_channel": "channel", "private_channel": "group", "mpim": "mpim", "im": "im"}
_TOO_LONG = 40_000
_TOO_LONG_TO_EDIT = 4_000


class SlackMethods(FakeSlackButtons, FileShelf):
    """What the app may ask of the workspace; the server knows how it is asked."""

    app_id = "A0PARLOUR"

    def _require(self, scope: str) -> None:
        if scope and scope not in self.scopes:
            raise SlackError("missing_scope", needed=scope, provided=",".join(sorted(self.scopes)))

    def _place(self, arguments: Mapping[str, Any], *, writes: bool = False) -> FakeSlackChat:
        place = self.places.get(str(arguments.get("channel") or arguments.get("channel_id")))
        if place is None and writes:  # chat.postMessage takes a person's id for the direct chat with them
            direct = (each for each in self.places.values() if each.kind == "im")
            place = next((each for each in direct if arguments.get("channel") in each.members), None)
        if place is None:
            raise SlackError("channel_not_found")
        if BOT_USER not in place.members:
            raise SlackError("not_in_channel" if place.kind == "channel" else "channel_not_found")
        if writes and place.is_archived:
            raise SlackError("is_archived")
        return place

    def _auth_test(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"user_id": BOT_USER, "user": "parlour", "bot_id": BOT_ID, "team_id": TEAM, "team": "Home"}

    def _bots_info(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"bot": {"id": arguments["bot"], "app_id": self.app_id, "name": "parlour"}}

    def _users_info(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments["user"] not in self.users:
            raise SlackError("user_not_found")
        return {"user": self.users[arguments["user"]]}

    def _usergroups_list(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"usergroups": [{"id": ident, "handle": handle} for ident, handle in self.groups.items()]}

    def _conversations_info(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        place = self.places.get(str(arguments["channel"]))
        if place is None:
            raise SlackError("channel_not_found")
        self._require(_INFO[place.kind])
        return {"channel": {"id": place.id, "name": place.name, "creator": place.creator}}

    def _users_conversations(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """List what the app is a member of: docs.slack.dev/reference/methods/users.conversations."""
        kinds = str(arguments.get("types") or "public_channel").split(",")
        if not set(kinds) <= set(_LISTED):
            raise SlackError("invalid_types")
        for kind in kinds:
            self._require(_INFO[_LISTED[kind]])
        limit, start = _limit(arguments), int(arguments.get("cursor") or 0)
        found = [
            {"id": place.id, "name": place.name, "is_archived": place.is_archived, "creator": place.creator}
            for place in self.places.values()
            if BOT_USER in place.members
            and place.kind in {_LISTED[kind] for kind in kinds}
            and not (place.is_archived and arguments.get("exclude_archived") == "true")
        ]
        more = str(start + limit) if start + limit < len(found) else ""
        return {"channels": found[start : start + limit], "response_metadata": {"next_cursor": more}}

    def _chat_postmessage(self, arguments: dict[str, Any]) -> dict[str, Any]:
        place = self._place(arguments, writes=True)
        message = {
            "type": "message",
            "user": BOT_USER,
            "bot_id": BOT_ID,
            "ts": self._ts(),
            **_text(arguments, _TOO_LONG),
        }
        if thread := arguments.get("thread_ts"):
            if not any(known["ts"] == thread for known in place.messages):
                raise SlackError("thread_not_found")
            message["thread_ts"] = thread
        message["preview"] = bool(arguments.get("unfurl_links", True)) or bool(arguments.get("unfurl_media", True))
        place.messages.append(message)
        # Our own words come back as events, as every bot's do.
        self.tell(place.id, {key: value for key, value in message.items() if key != "metadata"})
        return {"channel": place.id, "ts": message["ts"], "message": message}

    def _chat_postephemeral(self, arguments: dict[str, Any]) -> dict[str, Any]:
        place = self._place(arguments, writes=True)
        if arguments["user"] not in place.members:
            raise SlackError("user_not_in_channel")
        if "metadata" in arguments:
            raise SlackError("invalid_arguments")
        ts = self._ts()
        place.whispers.append({"user": arguments["user"], "ts": ts, **_text(arguments, _TOO_LONG)})
        return {"message_ts": ts}

    def _chat_update(self, arguments: dict[str, Any]) -> dict[str, Any]:
        place = self._place(arguments, writes=True)
        message = next((known for known in place.messages if known["ts"] == arguments["ts"]), None)
        if message is None:
            raise SlackError("message_not_found")
        if message["user"] != BOT_USER:
            raise SlackError("cant_update_message")
        if message.get("streams"):
            raise SlackError("streaming_state_conflict")
        before = dict(message)
        message.setdefault("was", []).append(message["text"])
        message.pop("blocks", None)  # a new text replaces them
        message.update(_text(arguments, _TOO_LONG_TO_EDIT), edited={"user": BOT_USER, "ts": self._ts()})
        self._changed_event(place.id, message, before)
        return {"channel": place.id, "ts": message["ts"], "text": message["text"]}

    def _conversations_history(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        place = self._place(arguments)
        self._require(_HISTORY[place.kind])
        top = [known for known in place.messages if known.get("thread_ts", known["ts"]) == known["ts"]]
        return self._page(list(reversed(top)), arguments)

    def _conversations_replies(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        place = self._place(arguments)
        self._require(_HISTORY[place.kind])
        parent = [known for known in place.messages if known["ts"] == arguments["ts"]]
        thread = [
            known for known in place.messages if known.get("thread_ts") == arguments["ts"] and known not in parent
        ]
        if not parent and not thread:
            raise SlackError("thread_not_found")
        # The parent comes with every page, whatever times were asked for.
        return self._page(thread, arguments, always=parent)

    def _page(
        self, messages: list[dict[str, Any]], arguments: Mapping[str, Any], *, always: Sequence[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        everything = self.places[str(arguments["channel"])].messages
        oldest, start, limit = arguments.get("oldest", "0"), int(arguments.get("cursor") or 0), _limit(arguments)
        latest = _number(arguments.get("latest") or "99999999999")
        is_inclusive = arguments.get("inclusive") in ("1", "true")
        found = [
            message
            for message in messages
            if _number(oldest) < _number(message["ts"]) < latest
            or (is_inclusive and _number(message["ts"]) in (_number(oldest), latest))
        ]
        page = [dict(message) for message in (*always, *found[start : start + limit])]
        reads = arguments.get("include_all_metadata") in ("1", "true") and "metadata.message:read" in self.scopes
        for message in page:
            replies = [each["ts"] for each in everything if each.get("thread_ts") == message["ts"] != each["ts"]]
            if replies:
                message |= {"thread_ts": message["ts"], "reply_count": len(replies), "latest_reply": max(replies)}
            message.pop("was", None)
            message.pop("streams", None)
            if not reads:
                message.pop("metadata", None)
        more = str(start + limit) if start + limit < len(found) else ""
        return {"messages": page, "has_more": bool(more), "response_metadata": {"next_cursor": more}}

    def _reactions_add(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = (arguments["channel"], arguments["timestamp"], arguments["name"])
        self._message(key[0], key[1])
        if key in self.reactions:
            raise SlackError("already_reacted")
        self.reactions.add(key)
        return {}

    def _reactions_remove(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        key = (arguments["channel"], arguments["timestamp"], arguments["name"])
        if key not in self.reactions:
            raise SlackError("no_reaction")
        self.reactions.discard(key)
        return {}

    def _assistant_threads_setstatus(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        self._place(arguments)
        self.statuses[(arguments["channel_id"], arguments["thread_ts"])] = arguments["status"]
        return {}


def _limit(arguments: Mapping[str, Any]) -> int:
    """Return how many are wanted; 999 is the most, and 100 what is given unasked."""
    limit = str(arguments.get("limit") or "100")
    if not limit.isdecimal() or not 1 <= int(limit) <= 999:
        raise SlackError("invalid_limit")
    return int(limit)


def _number(ts: str) -> tuple[int, int]:
    seconds, _, rest = str(ts).partition(".")
    return int(seconds), int((rest or "0").ljust(6, "0"))


def _text(arguments: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return what is kept of a text, or refuse it as Slack does."""
    text = arguments.get("text") or ""
    if not text.strip():
        raise SlackError("no_text")
    if len(text) > limit:
        raise SlackError("msg_too_long")
    kept: dict[str, Any] = {"text": text, **checked_blocks(arguments)}
    if metadata := arguments.get("metadata"):
        if set(metadata) != {"event_type", "event_payload"} or not isinstance(metadata["event_payload"], dict):
            raise SlackError("invalid_metadata_format")
        kept["metadata"] = metadata
    return kept
