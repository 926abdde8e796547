"""Where a URI of the spec lies on this machine."""

from importlib.resources import files
from pathlib import Path


def local_path(uri: str) -> Path:
    """The local path of an absolute path or of ``package://PACKAGE/PATH``; it need not exist.

    Raises ValueError, saying what was found and what is possible, for any other URI.
    """
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "package":
        package, _, inside = rest.partition("/")
        try:
            # Joined before it is turned into text: a package without __init__.py is several folders at once.
            return Path(str(files(package).joinpath(inside)))
        except ModuleNotFoundError as error:
            raise ValueError(f"{uri}: there is no Python package {package!r} here") from error
    if separator or not uri.startswith("/"):
        raise ValueError(f"{uri}: expected an absolute path or package://PACKAGE/PATH")
    return Path(uri)
