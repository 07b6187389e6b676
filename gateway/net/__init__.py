"""How connections leave this machine: as they are, or through the one proxy that the operator named (ADR 24).

Whoever opens connections takes the proxy's address as a plain string, "" being none, and asks this package for what its
library connects with: `gateway.net.aiohttp_proxy` a connector, `gateway.net.httpx_proxy` a transport. No environment
variable is read or written here. Names are resolved by the proxy, never here; what is near goes past it (`is_direct`).
"""

from gateway.net.proxy_address import ProxyAddress as ProxyAddress
from gateway.net.proxy_address import is_direct as is_direct
