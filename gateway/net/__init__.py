"""Outgoing connections: direct, or through the one proxy that the operator configured (docs/network.md).

Callers pass the proxy's address as a string ("" = none) and get what aiohttp connects with, a connector from
`gateway.net.connector`. No environment variable is read or written here. The proxy resolves host names; local
destinations bypass it (`is_direct`).
"""

import os
import ssl
from functools import lru_cache

from gateway.net.addresses import ProxyAddress as ProxyAddress
from gateway.net.addresses import is_direct as is_direct


def trusted_certificates() -> ssl.SSLContext:
    """Return certifi's certificates, or those of SSL_CERT_FILE or SSL_CERT_DIR, as litellm does."""
    return _read(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=1)  # a quarter of a megabyte that all clients share
def _read(file: str | None, folder: str | None) -> ssl.SSLContext:
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())
