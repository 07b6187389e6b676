"""/settings shows the settings of a chat; /as, /model, /effort, /language and /timezone choose some of them."""

from __future__ import annotations

import asyncio
import difflib

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.commands.reminders import zone_question
from agent.llm.request_messages import EFFORTS
from agent.tools.offline_model import is_offline
from agent.turns.chat_profiles import ActiveModel, ChatProfile, EffectiveSetting, ModelChoiceOrigin
from gateway.errors import ModelAbility
from gateway.events import MessageButton, Role
from gateway.i18n import list_languages, own_name, parse_language, translate
from gateway.i18n.formats import find_zone

_ORIGINS = frozenset({"everywhere", "block", "chosen"})
_OF_PROFILE = "profiles."  # before the name of the profile that a setting comes from
_DEFAULT_WORDS = frozenset({"default", "auto", "reset", "-"})
_LONGEST_NAME = 60
_CHOOSING = {ANY: CommandNeed(shared=Role.ADMIN)}


@command("settings", is_control=True)
async def settings(context: CommandContext) -> CommandReply:
    """List each setting by its name in the settings file."""
    effective = context.services.list_settings(context.key, context.message.guild, context.scope)
    lines = [f"- `{each.name}`: {each.value} ({_origin(context, each)})" for each in effective]
    text = "\n".join([context.translate("settings.title"), *lines])
    return CommandReply(text=f"{text}\n\n{context.translate('settings.more')}", is_private=True)


def _origin(context: CommandContext, setting: EffectiveSetting) -> str:
    if setting.said_by in _ORIGINS:
        return context.translate(f"settings.{setting.said_by}")
    if setting.said_by.startswith(_OF_PROFILE):
        return context.translate("settings.profile", profile=setting.said_by.removeprefix(_OF_PROFILE))
    return context.translate("settings.place", place=setting.said_by)


@command("language", words=_CHOOSING)
async def language(context: CommandContext) -> CommandReply:
    """Show or set the language of our own sentences; answers follow the language of the message."""
    services = context.services
    if not context.args:
        name = own_name(context.language)
        return context.reply("commands.language", name=name, languages=list_languages())
    if context.args.lower() in _DEFAULT_WORDS:
        await services.preferences.prefer(context.scope, "language", "")
        # Read again: the turn was claimed with the choice that has just been removed.
        return CommandReply(text=translate("commands.language_set", services.locales.language(context.key)))
    chosen = parse_language(context.args)
    if not chosen:
        return context.reply("commands.language_unknown", name=_short(context.args), languages=list_languages())
    await services.preferences.prefer(context.scope, "language", chosen)
    return CommandReply(text=translate("commands.language_set", chosen))


@command("timezone", words=_CHOOSING)
async def timezone(context: CommandContext) -> CommandReply:
    """Show or set the time zone, by its IANA name or by a city."""
    services = context.services
    if not context.args:
        return context.reply("commands.timezone", zone=context.turn.zone)
    if context.args.lower() in _DEFAULT_WORDS:
        await services.preferences.prefer(context.scope, "timezone", "")
        return await _zone_reply(context, services.locales.zone(context.scope))
    match = await asyncio.to_thread(find_zone, context.args)
    if not match.name:
        zone, near = _short(context.args), ", ".join(match.near)
        return context.reply("commands.timezone_near" if near else "commands.timezone_unknown", zone=zone, near=near)
    await services.preferences.prefer(context.scope, "timezone", match.name)
    return await _zone_reply(context, match.name)


async def _zone_reply(context: CommandContext, zone: str) -> CommandReply:
    """Return the confirmation, and the question whether reminders of another zone move."""
    question, buttons = await zone_question(context, zone)
    texts = [context.translate("commands.timezone_set", zone=zone), question]
    return CommandReply(text="\n\n".join(filter(None, texts)), choices=buttons)


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_NAME]


_LONGEST = 60  # characters of an unknown name that the reply repeats
_LABEL = 40  # characters on a button
_IN_A_ROW = 2
_MOST_BUTTONS = 9  # including the default; the text lists every model


@command("model", is_control=True, words={ANY: CommandNeed(shared=Role.ADMIN)})
async def model(context: CommandContext) -> CommandReply:
    """Show the model that answers here and the others on offer, or choose one from the next turn on."""
    profiles = context.services.profiles
    if not context.args:
        return _show(context)
    if context.args.lower() in _DEFAULT_WORDS:
        await profiles.choose_model(context.key, "")
        return context.reply("model.back", model=model_label(_active_now(context)))
    name = profiles.models.find(context.args)
    if not name:
        return CommandReply(text=_unknown(context))
    await profiles.choose_model(context.key, name)
    return context.reply("model.set", model=model_label(_active_now(context)))


def model_label(model: ActiveModel) -> str:
    """Return the model's name, with the provider's name for it if that differs."""
    full = model.client.name
    return f"`{model.name}`" if model.name == full else f"`{model.name}` ({full})"


def model_gone_line(model: ActiveModel, language: str) -> str:
    """Return the line that the chosen model is no longer offered, and which one answers instead."""
    return translate("model.lost", language, lost=model.lost, model=model_label(model))


def has_model(context: CommandContext) -> bool:
    """Return True if a language model answers in the chat, not the offline stand-in."""
    return not is_offline(context.turn.profile.model.name)


def _active_now(context: CommandContext) -> ActiveModel:
    # Read again: the command may just have changed the choice that the turn was claimed with.
    return context.services.profiles.of(context.key, context.message.guild).active


def _show(context: CommandContext) -> CommandReply:
    active, offered = context.turn.profile.active, context.services.profiles.models.offered
    lines = [context.translate(f"model.{active.origin}", model=model_label(active))]
    if active.lost:
        lines.append(model_gone_line(active, context.language))
    others = [name for name in offered if name != active.name]
    if not others and active.origin is not ModelChoiceOrigin.CHOSEN:
        return CommandReply(text="\n\n".join([*lines, context.translate("model.none_offered")]))
    listed = "\n".join(f"- `{name}`" for name in offered)
    lines.append(context.translate("model.offered", models=listed))
    buttons = _buttons(context, "model", others, is_chosen=active.origin is ModelChoiceOrigin.CHOSEN)
    return CommandReply(text="\n\n".join(lines), choices=buttons)


def _buttons(context: CommandContext, name: str, others: list[str], *, is_chosen: bool) -> tuple[MessageButton, ...]:
    """Return a button of the command *name* for each of *others*, and if one was chosen, the way back."""
    labels = [(each, f"/{name} {each}") for each in others[: _MOST_BUTTONS - 1]]
    if is_chosen:
        labels.append((context.translate("model.as_before"), f"/{name} default"))
    return tuple(
        MessageButton(label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…", command_text, n // _IN_A_ROW)
        for n, (label, command_text) in enumerate(labels)
    )


def _shown_args(context: CommandContext) -> str:
    return " ".join(context.args.replace("`", "").split())[:_LONGEST]


def _unknown(context: CommandContext) -> str:
    typed = _shown_args(context)
    models = context.services.profiles.models
    if not models.offered:
        return context.translate("model.none_offered")
    if near := models.near(context.args):
        return context.translate("model.near", name=typed, near=near)
    return context.translate("model.unknown", name=typed, models=", ".join(f"`{each}`" for each in models.offered))


@command("as", is_control=True, words={ANY: CommandNeed(shared=Role.ADMIN)})
async def as_profile(context: CommandContext) -> CommandReply:
    """List the profiles, or choose one from the next turn on."""
    profiles, name = context.services.profiles, context.args.strip().lower()
    if not name:
        return _show_profiles(context)
    if name in _DEFAULT_WORDS:
        await profiles.choose_profile(context.key, "")
    elif name in profiles.offered:
        await profiles.choose_profile(context.key, name)
    else:
        return CommandReply(text=_unknown_profile(context, name))
    # Read again: the turn was claimed with the choice before, and in its language.
    profile = profiles.of(context.key, context.message.guild)
    language = context.services.locales.language(context.key)
    lines = [translate("profile.set" if profile.name else "profile.back", language, profile=profile.name)]
    if profile.name and profile.active.origin is ModelChoiceOrigin.CHOSEN:
        lines.append(translate("profile.own_model", language, model=model_label(profile.active)))
    return CommandReply(text="\n\n".join(lines))


def profile_gone_line(profile: ChatProfile, language: str) -> str:
    """Return the line that the chosen profile is no longer offered."""
    return translate("profile.lost", language, lost=profile.lost_name)


def _show_profiles(context: CommandContext) -> CommandReply:
    profile, offered = context.turn.profile, context.services.profiles.offered
    origin = "profile.chosen" if profile.has_chosen_name else "profile.decided" if profile.name else "profile.none"
    lines = [context.translate(origin, profile=profile.name)]
    if profile.lost_name:
        lines.append(profile_gone_line(profile, context.language))
    others = [each for each in offered if each != profile.name]
    if not others and not profile.has_chosen_name:
        return CommandReply(text="\n\n".join([*lines, context.translate("profile.none_offered")]))
    listed = "\n".join(f"- `{each}`" for each in offered)
    lines.append(context.translate("profile.offered", profiles=listed))
    buttons = _buttons(context, "as", others, is_chosen=profile.has_chosen_name)
    return CommandReply(text="\n\n".join(lines), choices=buttons)


def _unknown_profile(context: CommandContext, name: str) -> str:
    offered = context.services.profiles.offered
    if not offered:
        return context.translate("profile.none_offered")
    if near := next(iter(difflib.get_close_matches(name, offered, n=1)), ""):
        return context.translate("profile.near", name=_shown_args(context), near=near)
    listed = ", ".join(f"`{each}`" for each in offered)
    return context.translate("profile.unknown", name=_shown_args(context), profiles=listed)


@command("effort", is_control=True, words={ANY: CommandNeed(shared=Role.ADMIN)})
async def effort(context: CommandContext) -> CommandReply:
    """Show the effort of answers here, or choose one from the next turn on."""
    profiles, wanted = context.services.profiles, context.args.strip().lower()
    if not wanted:
        return _show_effort(context)
    if wanted not in EFFORTS and wanted not in _DEFAULT_WORDS:
        return context.reply("effort.unknown", efforts=", ".join(f"`{each}`" for each in EFFORTS))
    await profiles.choose_effort(context.key, "" if wanted in _DEFAULT_WORDS else wanted)
    # Read again: the turn was claimed with the choice before.
    chosen = profiles.of(context.key, context.message.guild).effort
    key = "effort.set" if wanted in EFFORTS else "effort.back"
    return CommandReply(
        text=_with_effort_refusal(context, context.translate(key, effort=_effort_label(context, chosen)))
    )


def _show_effort(context: CommandContext) -> CommandReply:
    profile = context.turn.profile
    text = context.translate("effort.now", effort=_effort_label(context, profile.effort))
    text = f"{_with_effort_refusal(context, text)}\n\n{context.translate('effort.how')}"
    others = [each for each in EFFORTS if each != profile.effort]
    return CommandReply(text=text, choices=_buttons(context, "effort", others, is_chosen=profile.has_chosen_effort))


def _effort_label(context: CommandContext, effort: str) -> str:
    return f"`{effort}`" if effort else context.translate("effort.unset")


def _with_effort_refusal(context: CommandContext, text: str) -> str:
    """Return *text*, followed by the line that the model here has refused the setting if it has."""
    model = context.turn.profile.model
    if not model.lacks(ModelAbility.EFFORT):
        return text
    return f"{text}\n{context.translate('effort.refused', model=model.name)}"
