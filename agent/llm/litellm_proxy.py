"""litellm through the operator's proxy.

litellm reads proxies only from the environment, and its default transport (aiohttp) ignores even those. Every client
of its asynchronous calls, OpenAI's SDK included, gets its transport from `AsyncHTTPHandler.create_async_transport`,
which we replace (ADR 24). The replacement fails closed: no request bypasses the proxy.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any

_KEPT = "_parlour_own"  # where litellm's own function waits while ours stands in its place
_LED = "_parlour_proxy"
_one_at_a_time = threading.Lock()  # models, embedder and transcriber load litellm in separate threads


def route_through_proxy(litellm: Any, proxy: str) -> None:
    """Let clients that *litellm* makes from now on connect through *proxy*; "" = as it does by itself.

    A process has one proxy. Where it becomes another one (tests), the clients of before are dropped.
    """
    handler = litellm.AsyncHTTPHandler
    with _one_at_a_time:
        if getattr(handler, _LED, "") == proxy:
            return
        if not hasattr(handler, _KEPT):
            setattr(handler, _KEPT, staticmethod(handler.create_async_transport))
        made = staticmethod(_maker(proxy)) if proxy else handler.__dict__[_KEPT]
        handler.create_async_transport = handler._create_async_transport = made  # noqa: SLF001 - its other name there
        setattr(handler, _LED, proxy)
        litellm.in_memory_llm_clients_cache.flush_cache()


def _maker(proxy: str) -> Any:
    def create(ssl_context: ssl.SSLContext | None = None, ssl_verify: bool | None = None, **_: object) -> Any:
        from gateway.net.httpx_proxy import transport  # litellm has brought httpx by now; a start need not

        return transport(proxy, verify=ssl_context if ssl_context is not None else ssl_verify is not False)

    return create
