"""Which stops count: those of processes that served somebody."""

from __future__ import annotations

from tests.contract.store.conftest import StoreBackend


async def stops(backend: StoreBackend) -> int:
    """Open as a gateway that starts, be killed, and return how many unclean stops it knew of."""
    store = await backend.open()
    count: int = (await store.journal.depth())["unclean_stops"]
    await backend.kill()
    return count


async def test_a_look_at_the_home_forgives_nothing(backend: StoreBackend) -> None:
    """`parlour status` between two crashes must not make the next start careless; a gateway's own clean stop does."""
    assert [await stops(backend) for _ in range(3)] == [0, 1, 2]
    store = await backend.open()
    assert (await store.journal.depth())["unclean_stops"] == 3
    await store.close(has_served=False)
    store = await backend.open()
    assert (await store.journal.depth())["unclean_stops"] == 3
    await store.close()
    store = await backend.open()
    assert (await store.journal.depth())["unclean_stops"] == 0
