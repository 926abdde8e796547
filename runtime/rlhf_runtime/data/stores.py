"""The kinds of remote storage that a URI may name: what differs from one to the next, as fsspec reads them all."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from rlhf_runtime.data.remote_files import LocationError

#: Seconds in which a connection must open, and seconds that an open one may be silent.
CONNECT_SECONDS, SILENT_SECONDS = 10.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One kind of storage.

    home         who is asked, in a message, unless the variable ``endpoint`` names another; "": the URI's own host
    credentials  environment variables that open it
    options      for fsspec's file system
    errors       what exceptions mean that its client has names of its own for
    tries        how often what may heal is tried: 1 where the client does so itself
    package      what reads it and comes by the extra ``extra``; None: the runtime always has it
    """

    home: str
    endpoint: str | None = None
    credentials: tuple[str, ...] = ()
    options: Callable[[], dict[str, Any]] = dict
    errors: Mapping[str, str] = field(default_factory=dict)
    tries: int = 3
    package: str | None = None
    extra: str = ""

    def asked(self, uri: str) -> str:
        """Who is asked for a URI, for messages."""
        return (os.environ.get(self.endpoint) if self.endpoint else None) or self.home or uri.split("/")[2]

    def variables(self) -> str:
        """Which of the credentials' variables are set; never what they hold."""
        found = ", ".join(map(is_set, self.credentials))
        return f"{found}; set them by runtime.env or runtime.envFrom, for instance from a Secret"

    def check(self, uri: str) -> None:
        """Raises LocationError (permanent) if the URI cannot be of this kind, or nothing here reads it."""
        if self.package is not None and find_spec(self.package) is None:
            raise LocationError(
                f"{uri}: the Python package {self.package} is not installed here; expected an image with the extra "
                f"{self.extra}: pip install 'rlhfjob[runtime,{self.extra}]'",
                permanent=True,
            )
        if not self.home and not _is_address(uri):
            found = uri.split("/")[2]
            raise LocationError(f"{uri}: found the host {found!r}, expected HOST or HOST:PORT", permanent=True)


def is_set(variable: str) -> str:
    """Whether an environment variable is set."""
    return f"{variable} is {'set' if os.environ.get(variable) else 'not set'}"


def _is_address(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _s3() -> dict[str, Any]:
    retries = {"max_attempts": 2, "mode": "standard"}
    return {
        "config_kwargs": {"connect_timeout": CONNECT_SECONDS, "read_timeout": SILENT_SECONDS, "retries": retries},
    }


def _web() -> dict[str, Any]:
    from aiohttp import ClientTimeout

    # What a server sends is kept as it is: not unpacked, and its address not written in another way. The usual
    # variables name a proxy.
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
    return {
        "encoded": True,
        "headers": {"Accept-Encoding": "identity"},
        "client_kwargs": {"timeout": timeout, "trust_env": True, "auto_decompress": False},
    }


def _abfs() -> dict[str, Any]:
    return {"connection_timeout": int(CONNECT_SECONDS), "read_timeout": int(SILENT_SECONDS)}


_WEB = Store(home="", options=_web)

STORES: dict[str, Store] = {
    "s3": Store(
        home="the AWS endpoint",
        endpoint="AWS_ENDPOINT_URL",
        credentials=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        options=_s3,
        errors={"NoCredentialsError": "no credentials", "PartialCredentialsError": "no credentials"},
    ),
    "gs": Store(
        home="Google Cloud Storage",
        endpoint="STORAGE_EMULATOR_HOST",
        credentials=("GOOGLE_APPLICATION_CREDENTIALS",),
        errors={"GoogleAuthError": "no valid credentials"},
        tries=1,
        package="gcsfs",
        extra="gs",
    ),
    "abfs": Store(
        home="Azure Blob Storage",
        credentials=(
            "AZURE_STORAGE_CONNECTION_STRING",
            "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
        ),
        options=_abfs,
        errors={"ClientAuthenticationError": "no valid credentials"},
        tries=1,
        package="adlfs",
        extra="abfs",
    ),
    "hf": Store(
        home="https://huggingface.co",
        endpoint="HF_ENDPOINT",
        credentials=("HF_TOKEN",),
        errors={
            "GatedRepoError": "the repository is gated: accept its terms there",
            "RevisionNotFoundError": "the repository has no such revision",
            "RepositoryNotFoundError": "there is no such repository that this token may see",
            "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, expected access to the Hub, or a local folder",
        },
    ),
    "http": _WEB,
    "https": _WEB,
}
