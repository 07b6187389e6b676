"""The client for named addresses in an internet of our own: what it dials, and what hostile servers get of it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.web.search_engines import WebHit, clean_hits
from gateway.net.public_http import NOT_PUBLIC, is_public
from tests.fakes.fake_internet import FORMS, NAMES, PUBLIC, PUBLIC_SIX, run_in_namespace, why_unavailable

_MISSING = why_unavailable()
pytestmark = [
    pytest.mark.skipif(bool(_MISSING), reason=_MISSING),
    pytest.mark.xdist_group("fake_internet"),  # one process plays it for all
]


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """Play every scenario once."""
    return run_in_namespace()


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_private_address_is_dialled(results: dict[str, dict[str, Any]], form: str) -> None:
    """An address that is not public is not dialled: named itself, behind a redirect, rebound, or through a proxy."""
    for how in ("form", "redirect", "rebound", "proxied"):
        found = results[f"{how} {form}"]
        assert not [each for each in found["dialled"] if not is_public(each)], (how, found)
        assert not found["outcome"].startswith("200"), (how, found)
    assert len(results[f"rebound {form}"]["dialled"]) == 1  # at the address that it had first


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_private_address_is_a_search_result(form: str) -> None:
    """Nor can it be offered that way to a tainted turn."""
    for url in (f"http://{form}/", f"https://{form}", f"http://{form}:80/x?y"):
        assert clean_hits([WebHit(title="a router", url=url), WebHit(title="b", url="https://b.example/")], 8) == [
            WebHit(title="b", url="https://b.example/")
        ]


@pytest.mark.parametrize(("name", "public"), [("both.test", PUBLIC), ("both6.test", PUBLIC_SIX)])
def test_of_two_addresses_the_private_one_is_not_dialled(
    results: dict[str, dict[str, Any]], name: str, public: str
) -> None:
    """A name with a public and a private address leads to the public one, or nowhere."""
    assert set(results[name]["dialled"]) <= {public}


def test_names_are_judged_by_what_is_dialled(results: dict[str, dict[str, Any]]) -> None:
    """A name leads to its public address only; one that is resolved again, to loopback, is refused then."""
    for name, addresses in NAMES.items():
        found = results[f"name {name}"]
        if is_public(addresses[0]):
            assert found["dialled"] == [addresses[0]]
            assert found["outcome"] == "200 5 hello"
        else:
            assert (found["dialled"], found["outcome"]) == ([], NOT_PUBLIC)
    for name in ("rebind.test", "rebind6.test"):
        assert (results[f"again {name}"]["dialled"], results[f"again {name}"]["outcome"]) == ([], NOT_PUBLIC)


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("drip", "no response within 2 seconds"),
        ("silent", "no response within 2 seconds"),
        ("huge", "more than 5 MB"),
        ("unsized", "more than 5 MB"),
        ("bomb", "more than 5 MB"),
        ("short", "the response broke off"),
        ("long", "the server does not answer as a web server does"),
        ("brotli", "the response is packed in a way that was not asked for"),
        ("around", "more than 5 redirects"),
        ("file", "only http and https addresses can be opened"),
        ("port", "port 6379 is not opened"),
    ],
)
def test_hostile_servers_are_bounded(results: dict[str, dict[str, Any]], path: str, outcome: str) -> None:
    """Endless, slow, packed or wrong responses end within the limits and are named."""
    assert results[path]["outcome"] == outcome
    assert set(results[path]["dialled"]) == {PUBLIC}
    assert len(results[path]["dialled"]) <= 6


def test_ordinary_pages_are_fetched(results: dict[str, dict[str, Any]]) -> None:
    """A page of five megabytes, a packed one and a redirect to another host are read; a proxy resolves names."""
    assert results["five"]["outcome"].startswith("200 4974900 ")
    assert results["packed"]["outcome"] == "200 8 unpacked"
    assert results["hop"]["dialled"] == [PUBLIC, "1.1.1.1"]
    assert results["proxied public"]["outcome"] == "200 5 hello"


def test_names_that_bypass_a_proxy_are_refused(results: dict[str, dict[str, Any]]) -> None:
    """Behind a proxy, names that only this network knows are not opened."""
    assert results["proxied service"]["outcome"] == NOT_PUBLIC
    assert results["proxied internal"]["outcome"] == NOT_PUBLIC
