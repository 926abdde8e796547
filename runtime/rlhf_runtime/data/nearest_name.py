"""The name that somebody most likely meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """The end of a message about a name that is not there; empty where none that is comes close.

    >>> did_you_mean("trian.jsonl", ["README.md", "train.jsonl"]), did_you_mean("z.jsonl", ["a.jsonl"])
    ('; did you mean train.jsonl?', '')
    """
    # Names without their suffix, which many files share: alone it must not be close enough.
    names = {_stem(each): each for each in there}
    close = get_close_matches(_stem(name), names, n=1, cutoff=0.7)
    return f"; did you mean {names[close[0]]}?" if close else ""


def _stem(name: str) -> str:
    return name.partition(".")[0].lower()
