"""The one table of failures, with the sentence of each error; and what models cannot do, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.errors import (
    ContextOverflow,
    EmptyModelReply,
    FailureCause,
    InvalidModelReply,
    ModelAbility,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
    ModelTimeout,
    ModelUnreachable,
)
from gateway.i18n import FALLBACK, translate
from gateway.i18n.formats import format_moment
from gateway.ports.memory import ModelFact


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """One row: an error and its sentence, ``failures.<name>``."""

    name: str
    error: type[Exception] | None = None


FAILURES = (
    FailureMessage("busy", ModelRateLimited),
    FailureMessage("server_failed", ModelServerFailed),  # before its parent
    FailureMessage("unreachable", ModelUnreachable),
    FailureMessage("timeout", ModelTimeout),
    FailureMessage("filtered"),
    FailureMessage("refused", ModelRefused),
    FailureMessage("empty", EmptyModelReply),  # before its parent
    FailureMessage("garbled", InvalidModelReply),
    FailureMessage("overflow", ContextOverflow),
    FailureMessage("loop"),
    FailureMessage("written_call"),  # twice in a row a tool call as text
    FailureMessage("poison"),
    FailureMessage("bug", Exception),
)
BY_NAME = {failure.name: failure for failure in FAILURES}


def failure_of(error: BaseException) -> FailureMessage:
    """Return the first row whose error *error* is an instance of, or the row `bug`."""
    if cause_of(error) is FailureCause.FILTERED:
        return BY_NAME["filtered"]
    for failure in FAILURES:
        if failure.error is not None and isinstance(error, failure.error):
            return failure
    return BY_NAME["bug"]


def cause_of(error: BaseException) -> FailureCause | None:
    """Return what a person can repair of *error*, or None."""
    return error.cause if isinstance(error, ModelFailed) else None


def cause_line(cause: str, language: str = "en") -> str:
    """Return what is wrong and the remedy, for owners; *cause* is the value of a `FailureCause`."""
    return translate(f"failures.cause_{cause}", language)


def failure_line(
    failure: FailureMessage, reference: str, language: str = "en", *, cause: FailureCause | None = None, page: str = ""
) -> str:
    """Return the line for the sender: the failure, what to do, and the reference for the operator.

    With *cause*, which only owners are shown, the line names it and its remedy. It then also has a link to the card of
    the chat page at *page* that connects another model, if *page* is given and that is a remedy.
    """
    if cause is None or cause is FailureCause.FILTERED:
        text = translate(f"failures.{failure.name}", language)
    else:
        text = cause_line(cause, language)
    if page and cause is not None and cause.is_about_model:
        text = f"{text} [{translate('web.connect', language)}]({page}#connect)"
    return translate("failures.reference", language, text=text, reference=reference)


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
