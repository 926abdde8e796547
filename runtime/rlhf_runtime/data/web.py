"""Files behind ``http://`` and ``https://``; the usual variables name a proxy (HTTPS_PROXY) and certificates."""

import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from rlhf_runtime.data.remote_files import (
    SILENT_SECONDS,
    Listing,
    LocationError,
    RemoteFile,
    cached,
    first_line,
    retried,
)

#: Answers that ask for another try; every other one below 500 stays as it is.
_TRY_AGAIN = (408, 425, 429)


class WebPlace:
    """One file: a server says nothing about folders."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._host = uri.split("/")[2]
        if not _is_address(uri):
            raise LocationError(f"{uri}: found the host {self._host!r}, expected HOST or HOST:PORT", permanent=True)

    def listing(self) -> Listing:
        return retried(self._listing)

    def fetch(self, listing: Listing, file: RemoteFile) -> Path:
        def download(target: Path) -> None:
            with self._answer() as answer, target.open("wb") as copy:
                shutil.copyfileobj(answer, copy, 1 << 20)

        return retried(lambda: cached(self._uri, listing, file, download))

    def _listing(self) -> Listing:
        # GET, of which only the head is read: an address signed for GET answers nothing else.
        with self._answer() as answer:
            size, version = answer.headers["Content-Length"], answer.headers["ETag"] or answer.headers["Last-Modified"]
        name = self._uri.partition("?")[0].partition("#")[0].rstrip("/").rpartition("/")[2]
        return Listing(folder=False, files=(RemoteFile(name, int(size) if size else None, version),))

    @contextmanager
    def _answer(self) -> Iterator[HTTPResponse]:
        try:
            with urllib.request.urlopen(self._uri, timeout=SILENT_SECONDS) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            raise LocationError(
                f"{self._uri}: {self._host} answers {error.code} {error.reason}, expected the file",
                permanent=error.code < 500 and error.code not in _TRY_AGAIN,
            ) from error
        except (OSError, HTTPException) as error:
            raise LocationError(
                f"{self._uri}: cannot be read from {self._host} ({_why(error)})", permanent=False
            ) from error


def _why(error: OSError | HTTPException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else first_line(error)


def _is_address(uri: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(uri)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
