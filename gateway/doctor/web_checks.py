"""Checks that the client for named addresses refuses every kind of private address, as it does for the model."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.settings import Settings

# One form for each rule: the address, and where it would lead.
_FORMS = {
    "127.0.0.1": "loopback",
    "2130706433": "loopback as a number",
    "[::1]": "loopback of IPv6",
    "[::ffff:127.0.0.1]": "loopback, mapped",
    "[64:ff9b::7f00:1]": "loopback through NAT64",
    "[2002:7f00:1::]": "loopback through 6to4",
    "0.0.0.0": "this machine",  # noqa: S104 - an address to refuse
    "10.1.2.3": "a private network",
    "[fd00::1]": "a private network of IPv6",
    "100.64.0.1": "a provider's network",
    "169.254.169.254": "the metadata service of clouds",
    "[fe80::1]": "this link",
    "192.88.99.1": "a relay",
    "224.0.0.1": "a group",
    "240.0.0.1": "a reserved address",
    "[2001:db8::1]": "an address of documentation",
}


async def check_addresses(settings: Settings) -> list[DoctorFinding]:
    """Try one address for each rule, and localhost as the system resolves it; none is dialled."""
    if not settings.tools.web.fetch:
        return []
    from gateway.net.public_http import NOT_PUBLIC, FetchFailed, PublicHttpClient

    client = PublicHttpClient(proxy=settings.proxy_address)
    reached: list[str] = []  # forms that were not refused
    for form, target in {**_FORMS, "localhost": "loopback by name"}.items():
        try:
            await client.fetch(f"http://{form}/")
            reached.append(f"{form} ({target})")
        except FetchFailed as error:
            if str(error) != NOT_PUBLIC and form != "localhost":  # a machine may have no such name
                reached.append(f"{form} ({target})")
    return list(_findings(settings, reached))


def _findings(settings: Settings, open_forms: list[str]) -> Iterator[DoctorFinding]:
    if open_forms:
        text = f"the tool web_fetch does not refuse {', '.join(open_forms)}; set PARLOUR_TOOLS__WEB__FETCH=false"
        yield DoctorFinding(FindingLevel.FAIL, "web", text, "addresses")
    else:
        text = f"web_fetch refuses private addresses ({len(_FORMS) + 1} of {len(_FORMS) + 1} forms)"
        yield DoctorFinding(FindingLevel.OK, "web", text, "addresses")
    if settings.proxy:
        text = (
            "the proxy resolves the names that web_fetch opens; configure it so that it does not reach internal"
            " networks, or set PARLOUR_TOOLS__WEB__FETCH=false"
        )
        yield DoctorFinding(FindingLevel.WARN, "web", text, "proxy")
