"""URLs of stores and paths inside them; nothing here touches a disk or a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from topline.storage.errors import UnsafePathError, UnsupportedURLError

SCHEMES = ("file", "memory", "s3", "gs")

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_USERINFO = re.compile(r"://[^/@]*@")
_UNSAFE = re.compile(r"[\x00-\x1f\\]")
_QUERY = re.compile(r"[?#].*$", re.DOTALL)


@dataclass(frozen=True)
class StoreURL:
    """A store's address: `scheme` is one of `SCHEMES`, `root` the folder, or bucket and prefix."""

    scheme: str
    root: str

    def __str__(self) -> str:
        return self.root if self.scheme == "file" else f"{self.scheme}://{self.root}"


def masked(url: str) -> str:
    """Return `url` for messages and records, with user information and queries (secrets) masked."""
    if not _SCHEME.match(url):
        return url
    return _QUERY.sub("?***", _USERINFO.sub("://***@", url))


def parse_url(url: str) -> StoreURL:
    """Return the address that `url` names: a path, or file://, memory://, s3:// or gs://.

    Raises `UnsupportedURLError` for other schemes, for a missing bucket, and for credentials in the URL,
    which belong in the environment.
    """
    match = _SCHEME.match(url)
    if match is None:
        if not url or "\0" in url:
            raise UnsupportedURLError("a store needs a path or URL, for example ./store or s3://bucket/store")
        try:
            return StoreURL("file", str(Path(url).expanduser().absolute()))
        except RuntimeError as error:
            raise UnsupportedURLError(
                f"{url}: nobody has this name here; write ./{url} for a folder"
            ) from error
    scheme = match.group(1).lower()
    if scheme not in SCHEMES:
        raise UnsupportedURLError(
            f"{masked(url)}: stores are local paths or file://, memory://, s3:// and gs:// URLs, not {scheme}://"
        )
    if scheme == "file":
        return StoreURL("file", _local_root(url))
    if masked(url) != url:
        raise UnsupportedURLError(
            f"{masked(url)}: leave credentials and options out of the URL; set them in the environment"
        )
    parts = [part for part in url[match.end() :].split("/") if part]
    if not parts or any(part in {".", ".."} for part in parts):
        raise UnsupportedURLError(
            f"{url}: name a {'bucket' if scheme in {'s3', 'gs'} else 'folder'} after {scheme}://"
        )
    return StoreURL(scheme, "/".join(parts))


def _local_root(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise UnsupportedURLError(f"{masked(url)}: a file URL has three slashes, as in file:///data/store")
    return str(Path(unquote(parts.path)).absolute())


def clean_path(path: str) -> str:
    """Return `path` unchanged if it is a plain relative path inside a store; "" is the root.

    Raises `UnsafePathError` for absolute paths, "..", empty parts, backslashes and control characters.
    """
    if not path:
        return path
    if _UNSAFE.search(path) or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise UnsafePathError(f"{path!r} is not a path inside a store")
    return path


def join(*parts: str) -> str:
    """Return the non-empty parts joined by slashes."""
    return "/".join(filter(None, parts))


def split_url(url: str, folder: str) -> tuple[str, str]:
    """Return the store's URL and the name from a URL <store>/<folder>/<name>.

    Model URLs have the folder "models", run URLs "runs". Raises `UnsupportedURLError` otherwise.
    """
    head, _, name = str(url).rstrip("/").rpartition("/")
    root, _, middle = head.rpartition("/")
    if middle != folder or not root or not name:
        raise UnsupportedURLError(f"{masked(str(url))} is not of the form <store>/{folder}/<name>")
    return root, name
