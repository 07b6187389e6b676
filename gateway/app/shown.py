"""What people are shown of the settings in force in their chat: values, and who decided them. Nothing secret."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.llm.choices import Origin
from agent.manners import Manners, SettingInForce
from gateway.events import SessionKey
from gateway.locales import LANGUAGE, ZONE
from gateway.ports import ChatManners, Locales, People
from gateway.settings import Settings
from gateway.settings.chats import ChatRules, Chats

_EVERYWHERE, _BLOCK, _CHOSEN = "everywhere", "block", "chosen"


def settings_shown(
    settings: Settings, chats: Chats, manners: Manners, locales: Locales, people: People
) -> Callable[[SessionKey, str, str], Sequence[SettingInForce]]:
    """Return what tells which settings are in force in a chat of a guild and a scope."""

    def shown(key: SessionKey, guild: str, scope: str) -> Sequence[SettingInForce]:
        rules, chosen = chats.of(key, guild), people.preferences(scope)
        model = manners.models.in_force(key, guild)
        usual = ChatManners.of_block(settings.channels.get(key.channel))
        window = settings.agents.defaults.memory_window if rules.memory_window is None else rules.memory_window
        follows = usual.follow_threads if rules.follow_threads is None else rules.follow_threads
        return [
            _one(rules, "model", model.name, is_chosen=model.origin is Origin.CHOSEN),
            _one(rules, "soul", "…" if rules.soul else "SOUL.md"),
            _one(rules, "tools", ", ".join(manners.of(key, guild).toolbox.names) or "–"),
            _one(rules, "memory_window", str(window)),
            _one(rules, "language", locales.language(key), is_chosen=LANGUAGE in chosen),
            _one(rules, "timezone", locales.zone(scope), is_chosen=ZONE in chosen),
            _one(rules, "group_policy", rules.group_policy or usual.group_policy, _BLOCK),
            _one(rules, "reply_in", rules.reply_in or usual.reply_in, _BLOCK),
            _one(rules, "follow_threads", str(follows).lower(), _BLOCK),
            *_caps(rules),
        ]

    return shown


def _one(
    rules: ChatRules, name: str, value: str, usual: str = _EVERYWHERE, *, is_chosen: bool = False
) -> SettingInForce:
    places = (rules.said_by.get(each, "") for each in (name, f"{name}.deny", f"{name}.allow"))
    said_by = _CHOSEN if is_chosen else next(filter(None, places), usual)
    return SettingInForce(name=name, value=value, said_by=said_by)


def _caps(rules: ChatRules) -> Sequence[SettingInForce]:
    """Return the caps that are this chat's own; what is left of all of them stands in /usage."""
    names = sorted(name for name in rules.said_by if name.startswith("caps."))
    return [_one(rules, name, str(getattr(rules.caps, name.removeprefix("caps.")))) for name in names]
