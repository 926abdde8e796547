"""Files of the Hugging Face Hub: ``hf://[datasets/]ORG/NAME[@REVISION][/PATH]``.

HF_TOKEN opens private repositories, HF_ENDPOINT names a mirror, HF_HOME where the copies are kept: the
variables of `huggingface_hub`, which fetches.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from rlhf_runtime.data.remote_files import Listing, LocationError, RemoteFile, first_line, retried

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A repository of models or data sets, a branch, tag or commit of it (None: its main one), a path ("": all)."""

    kind: str
    repository: str
    revision: str | None
    path: str


def hub_address(uri: str) -> HubAddress:
    """The parts of an hf URI. Raises LocationError (permanent) if it has not enough of them.

    >>> hub_address("hf://datasets/org/sums@v1/train/a.jsonl")
    HubAddress(kind='dataset', repository='org/sums', revision='v1', path='train/a.jsonl')
    """
    kind, rest = "model", uri.removeprefix("hf://")
    if rest.startswith("datasets/"):
        kind, rest = "dataset", rest.removeprefix("datasets/")
    parts = rest.rstrip("/").split("/")
    name, _, revision = parts[1].partition("@") if len(parts) > 1 else ("", "", "")
    if not parts[0] or not name or not all(parts[2:]):
        raise LocationError(f"{uri}: expected hf://[datasets/]ORG/NAME[@REVISION][/PATH]", permanent=True)
    # A branch whose name has a slash is written with %2F.
    return HubAddress(kind, f"{parts[0]}/{name}", unquote(revision) or None, "/".join(parts[2:]))


class HubPlace:
    """A file of a repository, or all files directly in a folder of it, at one commit."""

    def __init__(self, uri: str) -> None:
        from huggingface_hub import HfApi
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        self._uri = uri
        self._address = hub_address(uri)
        self._api = HfApi()

    def listing(self) -> Listing:
        return retried(lambda: self._said(self._listing))

    def fetch(self, listing: Listing, file: RemoteFile) -> Path:
        where = self._address
        name = f"{where.path}/{file.name}".lstrip("/") if listing.folder else where.path
        return retried(
            lambda: self._said(
                lambda: Path(
                    self._api.hf_hub_download(where.repository, name, repo_type=where.kind, revision=where.revision)
                )
            )
        )

    def _listing(self) -> Listing:
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.hf_api import RepoFile

        where = self._address
        commit = self._api.repo_info(where.repository, repo_type=where.kind, revision=where.revision).sha
        # From here on one commit, whatever is pushed meanwhile.
        self._address = where = dataclasses.replace(where, revision=commit)
        if where.path:
            paths = self._api.get_paths_info(where.repository, where.path, repo_type=where.kind, revision=commit)
            if not paths:
                raise EntryNotFoundError(f"no {where.path!r} at {commit}")
            if isinstance(paths[0], RepoFile):
                return Listing(folder=False, files=(_described(paths[0]),))
        found = self._api.list_repo_tree(where.repository, where.path or None, repo_type=where.kind, revision=commit)
        files = [_described(entry) for entry in found if isinstance(entry, RepoFile)]
        return Listing(folder=True, files=tuple(sorted(files, key=lambda file: file.name)))

    def _said(self, call: Callable[[], T]) -> T:
        from huggingface_hub import constants, errors

        where, at = self._address, constants.ENDPOINT
        kind = f"{where.kind} {where.repository!r}"
        try:
            return call()
        except errors.GatedRepoError as error:
            raise self._refused(f"{kind} at {at} is gated; accept its terms there, and {_token()}") from error
        except errors.RepositoryNotFoundError as error:
            raise self._refused(f"there is no {kind} at {at} that this token may see; {_token()}") from error
        except errors.RevisionNotFoundError as error:
            raise self._refused(f"{kind} at {at} has no revision {where.revision!r}") from error
        except errors.OfflineModeIsEnabled as error:
            raise self._refused("HF_HUB_OFFLINE is set, expected access to the Hub, or a local folder") from error
        except errors.LocalEntryNotFoundError as error:
            # The Hub could not be asked, and no copy is here.
            raise LocationError(f"{self._uri}: cannot reach {at} ({first_line(error)})", permanent=False) from error
        except errors.EntryNotFoundError as error:
            raise self._refused(f"{kind} at {at} has no {where.path!r}") from error
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            permanent = 400 <= status < 500 and status not in (408, 429)
            raise LocationError(f"{self._uri}: {at} answers {first_line(error)}", permanent=permanent) from error
        except Exception as error:
            # Its HTTP client's and its transfer library's errors have no base of their own.
            raise LocationError(
                f"{self._uri}: cannot be read from {at} ({first_line(error)})", permanent=False
            ) from error

    def _refused(self, message: str) -> LocationError:
        return LocationError(f"{self._uri}: {message}", permanent=True)


def _described(entry: Any) -> RemoteFile:
    return RemoteFile(str(entry.path).rpartition("/")[2], entry.size, entry.blob_id)


def _token() -> str:
    from huggingface_hub import get_token

    return f"HF_TOKEN is {'set' if get_token() else 'not set'}"
