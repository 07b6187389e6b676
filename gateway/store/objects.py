"""The ObjectStore port over a directory, and over a bucket that speaks S3 (the extra `s3`, imported when it is set)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from gateway.durable_files import sync_folder
from gateway.errors import ObjectDamaged, ObjectsUnavailable, SettingsError
from gateway.net import ProxyAddress, is_direct

if TYPE_CHECKING:
    from obstore.store import S3Store

    from gateway.settings.settings_model import ObjectStoreSettings

_CHUNK = 1024 * 1024
_CONNECT, _REQUEST = "5s", "120s"  # limits of one attempt
_TRIES, _RETRYING = 3, timedelta(seconds=30)
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")  # in the answer of a server, which errors of the library quote
_NO_BUCKET = "NoSuchBucket"
_OTHER_REGION = "it is in another region: set store.objects.region"
_BARE_REDIRECT = "incorrectly configured region"  # the library's words for Amazon's redirect without an address
_MEANINGS = {
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "RequestTimeTooSkewed": "this machine's clock differs too much from the server's: set both by NTP",
}


class ObjectStore(Protocol):
    """Bytes by name. Each method raises ObjectsUnavailable for whatever goes wrong."""

    async def put(self, name: str, data: bytes) -> None:
        """Store *data* durably, whole or not at all; safe to repeat."""

    def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an object, a piece at a time."""

    async def delete(self, name: str) -> None:
        """Remove an object; has no effect if it does not exist."""


def open_objects(settings: ObjectStoreSettings, proxy: str = "") -> ObjectStore:
    """Return the store at `settings.url`: `file:///directory`, or `s3://bucket/prefix`.

    Does not connect. Raises SettingsError without the library, and for a proxy that it does not speak with.
    """
    parts, endpoint = urlsplit(settings.url or ""), settings.endpoint or f"https://s3.{settings.region}.amazonaws.com"
    if parts.scheme == "file":
        return DirectoryObjects(Path(unquote(parts.path)))
    try:
        from obstore.store import S3Store
    except ImportError:
        raise SettingsError("store.objects.url names a bucket: install the extra, parlour[s3]") from None
    client: dict[str, Any] = {"connect_timeout": _CONNECT, "timeout": _REQUEST}
    if endpoint.startswith("http://"):
        client["allow_http"] = True
    # Variables of the environment, which the library would read, decide nothing (docs/network.md).
    host = urlsplit(endpoint).hostname or ""
    is_bypassed = not proxy or is_direct(host)
    if not is_bypassed and ProxyAddress.parse(proxy).is_socks:
        raise SettingsError(
            "the bucket of store.objects is not reached through a SOCKS proxy: set PARLOUR_PROXY to http://"
        )
    client |= {"proxy_url": "http://localhost", "proxy_excludes": host} if is_bypassed else {"proxy_url": proxy}
    store = S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        region=settings.region,
        access_key_id=settings.access_key.get_secret_value() if settings.access_key else "",
        secret_access_key=settings.secret_key.get_secret_value() if settings.secret_key else "",
        disable_bulk_delete=True,  # not every server has it
        client_options=client,  # type: ignore[arg-type]
        retry_config={"max_retries": _TRIES - 1, "retry_timeout": _RETRYING},
        endpoint=endpoint,
        aws_endpoint_url_s3=endpoint,
        virtual_hosted_style_request=False,
        skip_signature=False,
    )
    return BucketObjects(store, parts.netloc)


class DirectoryObjects:
    """Objects as files of a directory: one that every gateway reaches, or a home. A name may be a path in it."""

    def __init__(self, folder: Path, *, is_home: bool = False) -> None:
        self._folder = folder
        self._label = "the home" if is_home else f"the directory {folder} of store.objects.url"

    async def put(self, name: str, data: bytes) -> None:
        """Write the file beside its name, then rename it."""
        with _translate_disk(self._label):
            await asyncio.to_thread(_write_durably, self._folder / name, data)

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Yield the file's bytes."""
        with _translate_disk(self._label):
            file = await asyncio.to_thread((self._folder / name).open, "rb")
            try:
                while data := await asyncio.to_thread(file.read, _CHUNK):
                    yield data
            finally:
                file.close()

    async def link(self, name: str, new: str) -> None:
        """Give a file a second name, durably; it is copied where the file system has no such links."""
        with _translate_disk(self._label):
            await asyncio.to_thread(_link_durably, self._folder / name, self._folder / new)

    async def delete(self, name: str) -> None:
        """Remove the file, what interrupted writes of it have left, and folders of its name that are empty then."""
        with _translate_disk(self._label):
            await asyncio.to_thread(_remove_file, self._folder, name)


class BucketObjects:
    """Objects of a bucket."""

    def __init__(self, store: S3Store, bucket: str) -> None:
        self._store = store
        self._bucket = bucket

    async def put(self, name: str, data: bytes) -> None:
        """Upload in one request: an upload in parts that is interrupted leaves parts behind."""
        with _translate_bucket(self._bucket, "write"):
            await self._store.put_async(name, data, use_multipart=False)

    async def read(self, name: str) -> AsyncIterator[bytes]:
        """Download as it arrives."""
        with _translate_bucket(self._bucket, "read"):
            found = await self._store.get_async(name)
            async for data in found.stream(min_chunk_size=_CHUNK):
                yield bytes(data)

    async def delete(self, name: str) -> None:
        """Remove the object, if it exists."""
        with _translate_bucket(self._bucket, "delete"):
            await self._store.delete_async(name)


@contextlib.contextmanager
def _translate_disk(label: str) -> Any:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectDamaged(f"{error.filename} is missing from {label}") from error
    except OSError as error:
        raise ObjectsUnavailable(f"{label}: {error.strerror}") from error


@contextlib.contextmanager
def _translate_bucket(bucket: str, action: str) -> Any:
    from obstore.exceptions import BaseError

    start = f"the bucket {bucket} of store.objects.url"
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        text = str(error)
        found = _CODE.search(text)
        code = found[1] if found else ""
        if isinstance(error, FileNotFoundError) and code != _NO_BUCKET and action != "write":
            if action == "delete":
                return
            raise ObjectDamaged(f"{start} lacks an object that the database refers to") from error
        raise ObjectsUnavailable(f"{start} {_describe_fault(error, code, action)}") from error


def _describe_fault(error: Exception, code: str, action: str) -> str:
    """Return the fault of a bucket and its remedy. *code* is S3's name of the error, "" if it gave none."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    line = str(error).partition("\n")[0]
    if isinstance(error, FileNotFoundError):
        return "does not exist at this endpoint: create it, or fix the address"
    if code in _MEANINGS:
        return f"cannot be used: {_MEANINGS[code]}"
    if _BARE_REDIRECT in line:
        return f"cannot be used: {_OTHER_REGION}"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        reason = "the server refuses store.objects.access_key and secret_key, or they lack the right"
        return f"cannot be used: {reason} to {action} objects"
    return f"cannot be reached: {line[:200]}{f' ({code})' if code else ''}"


def _remove_file(folder: Path, name: str) -> None:
    file = folder / name
    for path in (file, *file.parent.glob(f".{file.name}.*.tmp")):
        path.unlink(missing_ok=True)
    last = file.parent
    for parent in [each for each in file.parents if each.is_relative_to(folder) and each != folder][:2]:
        with contextlib.suppress(OSError):  # it has other files
            parent.rmdir()
            last = parent.parent
    with contextlib.suppress(FileNotFoundError):  # the folder of a removed file may be gone, or go meanwhile
        sync_folder(last)  # erased bytes do not come back


def _write_durably(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    fd = _create(beside)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _create(path: Path) -> int:
    """Open a new file, in folders that are made durably; the removal of another file may take them away again."""
    for _ in range(_TRIES):
        make_folder(path.parent)
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))


def make_folder(folder: Path) -> None:
    """Make a private folder with its missing parents, durably."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in missing:
        each.chmod(0o700)
        sync_folder(each.parent)


def _link_durably(path: Path, new: Path) -> None:
    make_folder(new.parent)
    try:
        new.hardlink_to(path)
    except FileExistsError:  # an earlier attempt
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        _write_durably(new, path.read_bytes())
    sync_folder(new.parent)
