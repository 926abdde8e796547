"""Where what a URI of the spec names lies on this machine; what lies elsewhere is fetched first.

absolute path            as it is
package://PACKAGE/PATH   inside an installed Python package
s3://BUCKET/KEY, gs://BUCKET/KEY, abfs://CONTAINER/PATH   an object, or the objects directly below a prefix
http(s)://HOST/PATH      one file
hf://[datasets/]ORG/NAME[@REVISION][/PATH]   a file of the Hugging Face Hub, or the files directly in a folder
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path

from rlhf_api.schema import URI_FORMS

from rlhf_runtime.data.place import Place
from rlhf_runtime.data.remote_files import LocationError
from rlhf_runtime.data.stores import STORES

__all__ = ["LocationError", "file_sizes", "local_path"]


def local_path(uri: str, only: Sequence[str] = ("*",)) -> Path:
    """The local path of the file or folder that a URI names. A local one need not exist; a remote one does.

    Of a remote folder, the files directly in it are fetched whose names match one of the patterns ``only``; a later
    call with other patterns adds to the same folder. Raises LocationError, which is a ValueError.
    """
    place = _remote(uri)
    if place is None:
        return _here(uri)
    listing = place.listing()
    wanted = [f for f in listing.files if not listing.folder or any(fnmatchcase(f.name, each) for each in only)]
    if not wanted:
        names = ", ".join(file.name for file in listing.files[:8]) or "no files"
        raise LocationError(f"{uri}: found {names}, expected {' or '.join(only)}", permanent=True)
    paths = [place.fetch(listing, file) for file in wanted]
    return paths[0].parent if listing.folder else paths[0]


def file_sizes(uri: str) -> dict[str, int | None]:
    """Name and bytes (None: not known) of every file directly in the folder that a URI names, or of the one file.

    Fetches nothing. Empty if a local path does not exist. Raises LocationError.
    """
    place = _remote(uri)
    if place is not None:
        return {file.name: file.size for file in place.listing().files}
    path = _here(uri)
    entries = sorted(path.iterdir()) if path.is_dir() else [path]
    return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}


def _remote(uri: str) -> Place | None:
    scheme, separator, _ = uri.partition("://")
    return Place(uri) if separator and scheme in STORES else None


def _here(uri: str) -> Path:
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "package":
        package, _, inside = rest.partition("/")
        try:
            # Joined before it is turned into text: a package without __init__.py is several folders at once.
            return Path(str(files(package).joinpath(inside)))
        except (ModuleNotFoundError, TypeError, ValueError) as error:
            # TypeError: a module, not a package; ValueError: a name that no package can have.
            raise LocationError(f"{uri}: there is no Python package {package!r} here", permanent=True) from error
    if separator or not uri.startswith("/") or "\0" in uri:
        raise LocationError(f"{uri}: expected {URI_FORMS}", permanent=True)
    return Path(uri)
