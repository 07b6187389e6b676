"""Outgoing connections: direct, or through the one proxy that the operator configured (docs/network.md).

Callers pass the proxy's address as a string ("" = none) and get what aiohttp connects with, a connector from
`gateway.net.aiohttp_proxy`. No environment variable is read or written here. The proxy resolves host names; local
destinations bypass it (`is_direct`).
"""

from gateway.net.proxy_address import ProxyAddress as ProxyAddress
from gateway.net.proxy_address import is_direct as is_direct
