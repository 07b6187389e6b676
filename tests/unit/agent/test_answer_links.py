"""An address stands in the prompt only if somebody else than the model wrote it there, letter for letter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agent.turns.turn import MOST_ADDRESSES, AnswerLinks
from gateway.text.linked_addresses import LONGEST

URL = "https://evil.example/p?q=secret"


def allowed(answer: str, *lines: Mapping[str, Any], system: str = "") -> Sequence[str]:
    """Return the links that *answer* may have after *lines*; results of `web` come from the web."""
    return AnswerLinks(system, lambda: lines, lambda line: line.get("name") == "web").find(answer)


def said(text: str, **more: object) -> Mapping[str, Any]:
    """Return a line of a person."""
    return {"role": "user", "content": text, "origin": "user", **more}


def result(text: str, name: str = "web", **more: object) -> Mapping[str, Any]:
    """Return a tool's result."""
    return {"role": "tool", "name": name, "content": text, "tool_call_id": "c", **more}


def called(url: str) -> Mapping[str, Any]:
    """Return a request of the model."""
    arguments = json.dumps({"url": url})
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"arguments": arguments}}]}


@pytest.mark.parametrize(
    "line",
    [
        said(f"read {URL}."),
        said("what is EVIL.example/p?q=secret?"),
        said(f"看{URL}的内容"),
        said(f"see [this]({URL})", origin="untrusted"),
        said("", files=[{"kind": "document", "text": f"Visit <{URL}>", "origin": "untrusted"}]),
        result(f'<a href="{URL}">'),
        result(f"1. Title\n{URL}\nwords"),
        result("", sources=[{"url": URL}]),
    ],
    ids=["typed", "without its scheme", "without blanks", "forwarded", "document", "page", "search", "source"],
)
def test_what_others_wrote_may_be_a_link(line: Mapping[str, Any]) -> None:
    """People, their files, and what the web tools brought."""
    assert allowed(f"Open {URL}", line) == ("evil.example/p?q=secret",)


@pytest.mark.parametrize(
    "lines",
    [
        [said("read https://evil.example/p")],
        [said("read https://evil.example/p?q=")],
        [said(f"read {URL}s")],
        [said("read https://evil.example/p?q=SECRET")],
        [said("read https://not-evil.example/p?q=secret or https://sub.evil.example/p?q=secret")],
        [said("", quoted=f"> {URL}")],
        [{"role": "assistant", "content": f"Open {URL}"}],
        [called(URL), result("not found")],
        [called(URL), result(f"nothing was found for {URL}")],
        [result(URL, name="compute")],
        [result(URL, name="file_read", origin="untrusted")],
        [result(URL, name="memory_search")],
    ],
    ids=[
        *("shorter", "prefix", "longer", "other case", "other host", "the bot's words, quoted", "answered before"),
        *("requested", "echoed", "computed", "composed in a file", "remembered"),
    ],
)
def test_what_the_model_may_have_composed_is_none(lines: Sequence[Mapping[str, Any]]) -> None:
    """Neither a variant of a known address, nor the model's own words by any way back."""
    assert allowed(f"Open {URL} and [this]({URL})", *lines) == ()


def test_a_person_who_types_the_models_address_means_it() -> None:
    """What the model wrote first and a page repeats is an echo; a person who repeats it is not."""
    before = {"role": "assistant", "content": URL}
    assert allowed(URL, before, result(URL)) == ()
    assert allowed(URL, result(URL), before) != ()
    assert allowed(URL, before, said(URL)) != ()


def test_what_the_operator_wrote_may_be_a_link() -> None:
    """Persona and memory are in the system prompt."""
    assert allowed(URL, system=f"Our site is {URL}.") != ()


def test_encoded_and_international_forms_are_the_same_address() -> None:
    """The parser encodes where a link leads; people and pages write it as they read it."""
    assert allowed("[a](https://bücher.example/ä)", said("lies https://bücher.example/ä")) != ()
    assert allowed("https://xn--bcher-kva.example/%C3%A4", result("https://Bücher.example/ä")) != ()
    assert allowed("https://a.example/%61", said("https://a.example/a")) == ()


def test_only_so_many_addresses_are_looked_for() -> None:
    """An answer of addresses costs a bounded search; those beyond are text."""
    urls = " ".join(f"https://a.example/{n}" for n in range(MOST_ADDRESSES + 50))
    assert len(allowed(urls, said(urls))) == MOST_ADDRESSES
    long = f"https://a.example/{'b' * LONGEST}"
    assert allowed(long, said(long)) == ()


def test_a_longer_address_beside_the_same_one_does_not_hide_it() -> None:
    """Every place is looked at."""
    assert allowed("https://a.example/b", result("https://a.example/b/c https://a.example/b.")) == ("a.example/b",)
