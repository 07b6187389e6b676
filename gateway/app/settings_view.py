"""What people are shown of the settings in force in their chat: values, and who decided them. Nothing secret."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.chat_profiles import ChatProfiles, EffectiveSetting
from agent.llm.model_catalog import ModelChoiceOrigin
from gateway.chat_locales import LANGUAGE, ZONE
from gateway.events import SessionKey
from gateway.ports import LocaleProvider, PreferenceStore, ReplyPolicy
from gateway.settings import Settings
from gateway.settings.chat_overrides import ChatOverride, ChatOverrides

_EVERYWHERE, _BLOCK, _CHOSEN = "everywhere", "block", "chosen"


def build_settings_view(
    settings: Settings, chats: ChatOverrides, manners: ChatProfiles, locales: LocaleProvider, people: PreferenceStore
) -> Callable[[SessionKey, str, str], Sequence[EffectiveSetting]]:
    """Return what tells which settings are in force in a chat of a guild and a scope."""

    def shown(key: SessionKey, guild: str, scope: str) -> Sequence[EffectiveSetting]:
        rules, chosen = chats.of(key, guild), people.preferences(scope)
        model = manners.models.active_model(key, guild)
        usual = ReplyPolicy.of_block(settings.channels.get(key.channel))
        window = settings.agents.defaults.memory_window if rules.memory_window is None else rules.memory_window
        follows = usual.follow_threads if rules.follow_threads is None else rules.follow_threads
        return [
            _one(rules, "model", model.name, is_chosen=model.origin is ModelChoiceOrigin.CHOSEN),
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
    rules: ChatOverride, name: str, value: str, usual: str = _EVERYWHERE, *, is_chosen: bool = False
) -> EffectiveSetting:
    places = (rules.said_by.get(each, "") for each in (name, f"{name}.deny", f"{name}.allow"))
    said_by = _CHOSEN if is_chosen else next(filter(None, places), usual)
    return EffectiveSetting(name=name, value=value, said_by=said_by)


def _caps(rules: ChatOverride) -> Sequence[EffectiveSetting]:
    """Return the caps that are this chat's own; what is left of all of them stands in /usage."""
    names = sorted(name for name in rules.said_by if name.startswith("caps."))
    return [_one(rules, name, str(getattr(rules.caps, name.removeprefix("caps.")))) for name in names]
