"""Abilities that models lack, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.errors import ModelAbility
from gateway.i18n import FALLBACK, translate
from gateway.i18n.formats import format_moment
from gateway.ports.memory import ModelFact

_ABILITIES = frozenset(ModelAbility)


def describe_missing(facts: Iterable[ModelFact], *, language: str = FALLBACK, zone: str = "UTC") -> str:
    """Return in words which abilities *facts* say are lacking, each with since when; "" for none."""
    words = [
        translate(
            "commands.ability_since",
            language,
            ability=translate(f"commands.ability_{ModelAbility(each.name)}", language),
            since=format_moment(each.at, zone, language),
        )
        for each in facts
        if each.name in _ABILITIES
    ]
    return ", ".join(words)


def describe_models(facts: Sequence[ModelFact]) -> dict[str, str]:
    """Return in words, by the name of a model, which abilities it lacks. Models that lack nothing are left out."""
    names = dict.fromkeys(each.model for each in facts)
    described = {
        # Behind the name is a digest of the address: one model at two addresses is one line of the latter's.
        name.partition(" ")[0]: describe_missing([each for each in facts if each.model == name])
        for name in names
    }
    return {name: abilities for name, abilities in described.items() if abilities}
