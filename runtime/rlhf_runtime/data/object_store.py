"""Files in S3 and its like, by s3fs. Credentials and endpoint come from the environment."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rlhf_runtime.data.nearest_name import did_you_mean
from rlhf_runtime.data.remote_files import (
    CONNECT_SECONDS,
    SILENT_SECONDS,
    Listing,
    LocationError,
    RemoteFile,
    cached,
    first_line,
    retried,
)

T = TypeVar("T")

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_ENDPOINT = "AWS_ENDPOINT_URL"


class S3Place:
    """An object, or all objects directly below a prefix: ``s3://BUCKET/KEY``."""

    def __init__(self, uri: str) -> None:
        import s3fs

        self._uri = uri
        self._path = uri.removeprefix("s3://").rstrip("/")
        self._bucket, _, self._key = self._path.partition("/")
        self._files = s3fs.S3FileSystem(
            config_kwargs={
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": SILENT_SECONDS,
                "retries": {"max_attempts": 2, "mode": "standard"},
            },
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def listing(self) -> Listing:
        return retried(lambda: self._said(self._listing))

    def fetch(self, listing: Listing, file: RemoteFile) -> Path:
        path = f"{self._path}/{file.name}" if listing.folder else self._path

        def download(target: Path) -> None:
            self._said(lambda: self._files.get_file(path, str(target)))

        origin = os.environ.get(_ENDPOINT, "")
        return retried(lambda: cached(self._uri, listing, file, download, origin=origin))

    def _listing(self) -> Listing:
        info = self._files.info(self._path)
        if info["type"] == "file":
            return Listing(folder=False, files=(_described(info),))
        # Some stores keep an empty object in the prefix's own name, for a folder.
        entries = [
            e for e in self._files.ls(self._path, detail=True) if e["type"] == "file" and e["name"] != self._path
        ]
        return Listing(folder=True, files=tuple(sorted(map(_described, entries), key=lambda file: file.name)))

    def _said(self, call: Callable[[], T]) -> T:
        """The call's result, or a LocationError that says what is wrong in the words of the user's job."""
        from botocore.exceptions import BotoCoreError, NoCredentialsError, PartialCredentialsError

        at = os.environ.get(_ENDPOINT) or "the AWS endpoint"
        try:
            return call()
        except LocationError:
            raise
        except FileNotFoundError as error:
            raise self._missing(error, at) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise LocationError(f"{self._uri}: no credentials: {_keys()}", permanent=True) from error
        except PermissionError as error:
            raise LocationError(
                f"{self._uri}: {at} refuses access ({first_line(error)}): {_keys()}", permanent=True
            ) from error
        except (TimeoutError, BotoCoreError, OSError) as error:
            raise LocationError(
                f"{self._uri}: cannot reach {at} ({first_line(error)}); expected an S3 service there "
                f"({_ENDPOINT} is {'set' if os.environ.get(_ENDPOINT) else 'not set'})",
                permanent=False,
            ) from error

    def _missing(self, error: FileNotFoundError, at: str) -> LocationError:
        if "bucket" in str(error).lower() and "not exist" in str(error):
            return LocationError(f"{self._uri}: there is no bucket {self._bucket!r} at {at}", permanent=True)
        parent, _, _ = self._path.rpartition("/")
        try:
            names = sorted(str(entry["name"]).rpartition("/")[2] for entry in self._files.ls(parent, detail=True))
        except Exception:
            # Only to help: who may read one object need not be allowed to list.
            names = []
        there = f"; s3://{parent}/ has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else ""
        there += did_you_mean(self._path.rpartition("/")[2], names)
        return LocationError(
            f"{self._uri}: there is no object, and none below, {self._key!r} in bucket {self._bucket!r} at {at}{there}",
            permanent=True,
        )


def _described(info: dict[str, Any]) -> RemoteFile:
    return RemoteFile(str(info["name"]).rpartition("/")[2], info.get("size"), info.get("ETag"))


def _keys() -> str:
    """Which of the credentials' variables are set; never what they hold."""
    found = ", ".join(f"{key} is {'set' if os.environ.get(key) else 'not set'}" for key in _KEYS)
    return f"{found}; set them by runtime.env or runtime.envFrom, for instance from a Secret"
