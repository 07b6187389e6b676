"""The one table of failures: which error is which sentence, and whether it is tried again."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import (
    ContextOverflow,
    EmptyModelReply,
    InvalidModelReply,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    ModelUnreachable,
)
from gateway.i18n import translate


@dataclass(frozen=True, slots=True)
class FailureMessage:
    """One row: its sentence is ``failures.<name>``."""

    name: str
    tried_again: bool  # by itself, before the person was told
    error: type[Exception] | None = None


FAILURES = (
    FailureMessage("busy", True, ModelRateLimited),
    FailureMessage("unreachable", True, ModelUnreachable),
    FailureMessage("timeout", True, ModelTimeout),
    FailureMessage("refused", False, ModelRefused),
    FailureMessage("empty", True, EmptyModelReply),  # before its parent
    FailureMessage("garbled", True, InvalidModelReply),
    FailureMessage("overflow", False, ContextOverflow),
    FailureMessage("loop", False),
    FailureMessage("poison", True),
    FailureMessage("bug", False, Exception),
)
BY_NAME = {failure.name: failure for failure in FAILURES}


def failure_of(error: BaseException) -> FailureMessage:
    """Return the first row whose error *error* is an instance of; `bug` when there is none."""
    for failure in FAILURES:
        if failure.error is not None and isinstance(error, failure.error):
            return failure
    return BY_NAME["bug"]


def failure_line(failure: FailureMessage, reference: str, language: str = "en") -> str:
    """Return the one line a person reads: cause, what to do, and the reference for the operator."""
    text = translate(f"failures.{failure.name}", language)
    return translate("failures.reference", language, text=text, reference=reference)
