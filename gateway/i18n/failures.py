"""The one table of failures: the sentence of each error."""

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
    """One row: an error and its sentence, ``failures.<name>``."""

    name: str
    error: type[Exception] | None = None


FAILURES = (
    FailureMessage("busy", ModelRateLimited),
    FailureMessage("unreachable", ModelUnreachable),
    FailureMessage("timeout", ModelTimeout),
    FailureMessage("refused", ModelRefused),
    FailureMessage("empty", EmptyModelReply),  # before its parent
    FailureMessage("garbled", InvalidModelReply),
    FailureMessage("overflow", ContextOverflow),
    FailureMessage("loop"),
    FailureMessage("poison"),
    FailureMessage("bug", Exception),
)
BY_NAME = {failure.name: failure for failure in FAILURES}


def failure_of(error: BaseException) -> FailureMessage:
    """Return the first row whose error *error* is an instance of, or the row `bug`."""
    for failure in FAILURES:
        if failure.error is not None and isinstance(error, failure.error):
            return failure
    return BY_NAME["bug"]


def failure_line(failure: FailureMessage, reference: str, language: str = "en") -> str:
    """Return the line for the sender: the cause, what to do, and the reference for the operator."""
    text = translate(f"failures.{failure.name}", language)
    return translate("failures.reference", language, text=text, reference=reference)
