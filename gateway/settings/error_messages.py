"""Pydantic's errors as one line a person can act on. No value is ever repeated: it may be a secret."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

Context = Mapping[str, Any]

_SENTENCES: Mapping[str, Callable[[Context], str]] = {
    "missing": lambda _: "is required; set it",
    "int_parsing": lambda _: "must be a whole number",
    "int_type": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_parsing": lambda _: "must be a number",
    "float_type": lambda _: "must be a number",
    "bool_parsing": lambda _: "must be true or false",
    "bool_type": lambda _: "must be true or false",
    "greater_than": lambda context: f"must be more than {context['gt']:g}",
    "greater_than_equal": lambda context: f"must be at least {context['ge']:g}",
    "less_than_equal": lambda context: f"must be at most {context['le']:g}",
    "literal_error": lambda context: f"must be {context['expected']}",
    "string_type": lambda _: "must be text; put it in quotes",
    "string_too_short": lambda _: "is empty; give it a value, or remove it",
    "tuple_type": lambda _: "must be a list, as JSON or separated by commas",
    "list_type": lambda _: "must be a list, as JSON or separated by commas",
    "model_type": lambda _: "must be a group of settings, not one value",
    "model_attributes_type": lambda _: "must be a group of settings, not one value",
    "dict_type": lambda _: "must be a group of settings, not one value",
    "mapping_type": lambda _: "must be a group of settings, not one value",
}


def explain_error(error: Mapping[str, Any], value: object = None) -> str:
    """Return the problem and how to fix it; *value* is only used to suggest a word."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind == "value_error":
        return str(context["error"])
    sentence = _SENTENCES.get(kind)
    text = sentence(context) if sentence else _generic(str(error["msg"]))
    if kind == "literal_error" and isinstance(value, str):
        words = str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        near = difflib.get_close_matches(value.lower(), words, n=1)
        text += f"; did you mean {near[0]}?" if near else ""
    return text


def _generic(message: str) -> str:
    return message[:1].lower() + message[1:]


def errors_by_path(invalid: ValidationError) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Return each error with the path of the setting it is about, list positions left out."""
    found: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []
    for error in invalid.errors(include_url=False):
        path = tuple(part for part in error["loc"] if isinstance(part, str) and part != "[key]")
        found.append((path, dict(error)))
    return found


_VERBS = ("is ", "must ", "needs ", "has ", "contains ", "was ", "looks ", "does ", "should ", "cannot ")


def error_line(place: str, text: str) -> str:
    """Join the place and what is wrong there into one line."""
    if not place:
        return text
    return f"{place} {text}" if text.startswith(_VERBS) else f"{place}: {text}"


class DuplicateKey(ValueError):
    """A mapping names the same key twice; the text is the key."""
