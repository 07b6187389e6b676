"""Two accounts of the pocket platform becoming one person, as people do it: a code, and a yes on both sides."""

from __future__ import annotations

import asyncio
import re

from tests.fakes.inprocess_gateway import InProcessGateway

CODE = re.compile(r"/link ([A-Z0-9]{8})")


async def code_of(parlour: InProcessGateway, account: str) -> str:
    """Ask for a code in an account's direct chat."""
    found = CODE.search(await parlour.channel.ask(account, "/link", sender=account))
    assert found is not None
    return found[1]


async def settled(parlour: InProcessGateway) -> None:
    """Return when nobody's accounts are being linked or taken apart."""
    while True:
        await parlour.idle()
        kinds = {each.kind for each in await parlour.app.store.jobs.pending_in("")}
        if not kinds & {"link", "unlink"} and not await parlour.app.store.links.moves():
            return
        await asyncio.sleep(0.01)


async def summarised(parlour: InProcessGateway, *scopes: str) -> None:
    """Return when nothing that was said in *scopes* waits for a summary any more."""
    kinds = {"remember", "update", "apply"}
    while True:
        found = [each.kind for scope in scopes for each in await parlour.app.store.jobs.pending_in(scope)]
        if not kinds.intersection(found):
            break
        await asyncio.sleep(0.01)
    await parlour.idle()


async def link(parlour: InProcessGateway, asker: str, taker: str) -> None:
    """Link two accounts, asked for in the first one's chat."""
    code = await code_of(parlour, asker)
    await parlour.channel.ask(taker, f"/link {code}", sender=taker)
    await parlour.channel.ask(taker, "/link yes", sender=taker)
    await parlour.channel.ask(asker, "/link yes", sender=asker)
    await settled(parlour)


async def unlink(parlour: InProcessGateway, account: str, which: str = "") -> None:
    """Take accounts apart again, from one of them."""
    await parlour.channel.ask(account, f"/unlink {which}".strip(), sender=account)
    await settled(parlour)
