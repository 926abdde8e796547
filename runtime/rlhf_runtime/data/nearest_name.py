"""The name that somebody most likely meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """The end of a message about a name that is not there; empty where none that is comes close.

    >>> did_you_mean("trian.jsonl", ["README.md", "train.jsonl"]), did_you_mean("a.jsonl", ["train.jsonl"])
    ('; did you mean train.jsonl?', '')
    """
    # Names of files share their suffix, which alone must not be close enough.
    close = get_close_matches(name, list(there), n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""
