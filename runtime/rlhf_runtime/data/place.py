"""A file or folder that lies elsewhere, by fsspec: what it has, and local copies of it."""

import dataclasses
import errno
from collections.abc import Callable, Iterator
from http.client import responses
from json import JSONDecodeError
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from rlhf_runtime.data.nearest_name import did_you_mean
from rlhf_runtime.data.remote_files import Listing, LocationError, RemoteFile, cached, first_line, retried
from rlhf_runtime.data.stores import STORES, is_set

T = TypeVar("T")

#: Keys of fsspec's descriptions that change with a file's content, the first that is there.
_VERSIONS = ("ETag", "etag", "blob_id", "Content-MD5", "Last-Modified")
#: Answers of HTTP that ask for another try; every other one below 500 stays as it is.
_TRY_AGAIN = (408, 425, 429)


class Place:
    """What a remote URI names: one file, or a folder with the files directly in it. Its methods raise LocationError."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._scheme, _, path = uri.partition("://")
        self._store = STORES[self._scheme]
        self._store.check(uri)
        self._at = self._store.asked(uri)
        # The web's paths are whole addresses.
        self._path = path.rstrip("/") if self._store.home else uri
        options = {"skip_instance_cache": True, "use_listings_cache": False, **self._store.options()}
        self._files = self._explained(lambda: fsspec.filesystem(self._scheme, **options))

    def listing(self) -> Listing:
        """What is there now."""
        return retried(lambda: self._explained(self._listing), self._store.tries)

    def fetch(self, listing: Listing, file: RemoteFile) -> Path:
        """A local copy of a file of the listing. Copies of one listing's files are in one folder."""
        path = f"{self._path}/{file.name}" if listing.folder else self._path

        def download(target: Path) -> None:
            self._explained(lambda: self._files.get_file(path, str(target)))

        return retried(lambda: cached(self._uri, listing, file, download, origin=self._at), self._store.tries)

    def _listing(self) -> Listing:
        if self._scheme == "hf":
            self._path = _at_one_commit(self._files, self._path)
        info = self._files.info(self._path)
        if info["type"] == "file":
            return Listing(folder=False, files=(_described(info),))
        entries = self._files.ls(self._path, detail=True)
        # Some stores keep an empty object in the prefix's own name, for a folder.
        files = [_described(each) for each in entries if each["type"] == "file" and each["name"] != self._path]
        return Listing(folder=True, files=tuple(sorted(files, key=lambda file: file.name)))

    def _explained(self, call: Callable[[], T]) -> T:
        """The call's result, or a LocationError that says what is wrong in the words of the user's job."""
        try:
            return call()
        except LocationError:
            raise
        except Exception as error:
            # Clients have errors of many kinds, and no base in common.
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            message, permanent = self._meaning(error)
            raise LocationError(f"{self._uri}: {message}", permanent=permanent) from error

    def _meaning(self, error: Exception) -> tuple[str, bool]:
        """What an error of the client says, and whether another attempt would find the same."""
        store, causes = self._store, list(_causes(error))
        names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
        named = next((message for name, message in store.errors.items() if name in names), None)
        status = next((found for cause in causes if (found := _status(cause)) is not None), None)
        said = first_line(causes[-1])
        if named is not None:
            return f"{named} ({self._at}); {store.variables()}", True
        if status in (401, 403) and store.credentials:
            return f"{self._at} refuses access ({said}); {store.variables()}", True
        if isinstance(causes[-1], FileNotFoundError) or (status == 404 and store.home):
            return self._missing(), True
        if status is not None:
            answer = f"{self._at} answers {status} {responses.get(status, '')}"
            return f"{answer} ({said}), expected the file", status < 500 and status not in _TRY_AGAIN
        if isinstance(error, ValueError) and not isinstance(error, JSONDecodeError):
            return f"cannot be read ({said}); {store.variables()}", True
        also = f"; {is_set(store.endpoint)}" if store.endpoint else ""
        return f"cannot be read from {self._at} ({said}){also}", False

    def _missing(self) -> str:
        parent, _, name = self._path.rpartition("/")
        names = self._names(parent)
        if not names and "/" in self._path and self._scheme != "hf" and not self._names(self._path.split("/")[0]):
            return f"there is no bucket {self._path.split('/')[0]!r} at {self._at}, or nothing is in it"
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        there = f"; {self._scheme}://{parent}/ has {listed}" if names else ""
        return f"there is no file and no folder {self._path!r} at {self._at}{there}{did_you_mean(name, names)}"

    def _names(self, folder: str) -> list[str]:
        try:
            return sorted(str(entry["name"]).rpartition("/")[2] for entry in self._files.ls(folder, detail=True))
        except Exception:
            # Only to help: who may read one file need not be allowed to list.
            return []


def _at_one_commit(files: Any, path: str) -> str:
    """The path of a repository with its revision's commit, so that all is read from one, whatever is pushed."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        where = files.resolve_path(path)
        repository, kind = where.repo_id, where.repo_type
    except (ValueError, AttributeError) as error:
        raise LocationError(
            f"hf://{path}: expected hf://[datasets/]ORG/NAME[@REVISION][/PATH]", permanent=True
        ) from error
    commit = HfApi().repo_info(repository, repo_type=kind, revision=where.revision).sha
    return str(dataclasses.replace(where, revision=commit, _raw_revision=None).unresolve())


def _described(info: dict[str, Any]) -> RemoteFile:
    # An address may have a query, which belongs to no file's name.
    name = str(info["name"]).partition("?")[0].partition("#")[0].rstrip("/").rpartition("/")[2]
    version = next((str(info[key]) for key in _VERSIONS if info.get(key)), None)
    return RemoteFile(name, info.get("size"), version)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _status(error: Any) -> int | None:
    """The HTTP status that an error of some client has."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    # aiohttp gives a `code` to answers that it cannot parse, too; gcsfs has no other name for the status.
    keys = ("status", "status_code", "code") if type(error).__name__ == "HttpError" else ("status", "status_code")
    candidates = [getattr(each, key, None) for each in (error, response) for key in keys]
    return next((each for each in candidates if isinstance(each, int) and 400 <= each < 600), None)
