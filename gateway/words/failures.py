"""The one table of failures: which error is which sentence, and whether it is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import (
    ContextOverflow,
    ModelBusy,
    ModelEmpty,
    ModelGarbled,
    ModelRefused,
    ModelTimeout,
    ModelUnreachable,
)
from gateway.words import say


@dataclass(frozen=True, slots=True)
class Failure:
    """One row: its sentence is ``failures.<name>``."""

    name: str
    tried_again: bool  # by itself, before the person was told
    error: type[Exception] | None = None


FAILURES = (
    Failure("busy", True, ModelBusy),
    Failure("unreachable", True, ModelUnreachable),
    Failure("timeout", True, ModelTimeout),
    Failure("refused", False, ModelRefused),
    Failure("empty", True, ModelEmpty),  # before its parent
    Failure("garbled", True, ModelGarbled),
    Failure("overflow", False, ContextOverflow),
    Failure("loop", False),
    Failure("poison", True),
    Failure("bug", False, Exception),
)
BY_NAME = {failure.name: failure for failure in FAILURES}


def failure_of(error: BaseException) -> Failure:
    """Return the first row whose error *error* is an instance of; `bug` when there is none."""
    for failure in FAILURES:
        if failure.error is not None and isinstance(error, failure.error):
            return failure
    return BY_NAME["bug"]


def tell(failure: Failure, reference: str, language: str = "en") -> str:
    """Return the one line a person reads: cause, what to do, and the reference for the operator."""
    text = say(f"failures.{failure.name}", language)
    return say("failures.reference", language, text=text, reference=reference)
