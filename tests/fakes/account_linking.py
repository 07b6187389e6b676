"""Two accounts of the pocket platform becoming one person, as people do it: a code, and a yes on both sides."""

from __future__ import annotations

import asyncio
import re

from tests.fakes.inprocess_gateway import InProcessGateway

CODE = re.compile(r"/link ([A-Z0-9]{8})")


async def code_of(pocket: InProcessGateway, account: str) -> str:
    """Ask for a code in an account's direct chat."""
    found = CODE.search(await pocket.channel.ask(account, "/link", sender=account))
    assert found is not None
    return found[1]


async def settled(pocket: InProcessGateway) -> None:
    """Return when nobody's accounts are being linked or taken apart."""
    while True:
        await pocket.idle()
        kinds = {each.kind for each in await pocket.app.store.jobs.pending_in("")}
        if not kinds & {"link", "unlink"} and not await pocket.app.store.links.moves():
            return
        await asyncio.sleep(0.01)


async def summarised(pocket: InProcessGateway, *scopes: str) -> None:
    """Return when nothing that was said in *scopes* waits for a summary any more."""
    kinds = {"remember", "consolidate", "apply", "summarise"}
    while True:
        found = [each.kind for scope in scopes for each in await pocket.app.store.jobs.pending_in(scope)]
        if not kinds.intersection(found):
            break
        await asyncio.sleep(0.01)
    await pocket.idle()


async def link(pocket: InProcessGateway, asker: str, taker: str) -> None:
    """Link two accounts, asked for in the first one's chat."""
    code = await code_of(pocket, asker)
    await pocket.channel.ask(taker, f"/link {code}", sender=taker)
    await pocket.channel.ask(taker, "/link yes", sender=taker)
    await pocket.channel.ask(asker, "/link yes", sender=asker)
    await settled(pocket)


async def unlink(pocket: InProcessGateway, account: str, which: str = "") -> None:
    """Take accounts apart again, from one of them."""
    await pocket.channel.ask(account, f"/unlink {which}".strip(), sender=account)
    await settled(pocket)
