"""How connections leave this machine: as they are, or through the one proxy that the operator named (ADR 24).

Whoever opens connections takes the proxy's address as a plain string, "" being none, and asks this package for what its
library connects with: `gateway.net.by_aiohttp` a connector, `gateway.net.by_httpx` a transport. No environment variable
is read or written here. Names are resolved by the proxy, never here; what is near goes past it (`is_direct`).
"""

from gateway.net.proxy import Proxy as Proxy
from gateway.net.proxy import is_direct as is_direct
