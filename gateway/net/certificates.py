"""The certificates that connections to platforms and model servers trust."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache


def trusted_certificates() -> ssl.SSLContext:
    """Return certifi's certificates, or those of SSL_CERT_FILE or SSL_CERT_DIR, as httpx and litellm do."""
    return _read(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=1)  # a quarter of a megabyte that all clients share
def _read(file: str | None, folder: str | None) -> ssl.SSLContext:
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())
