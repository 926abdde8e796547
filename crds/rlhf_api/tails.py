"""The end of a log or traceback, as reports and statuses keep it: whole lines, and not many."""

import re

#: Most characters of a tail that are kept.
MAX_TAIL = 4096


def last_lines(text: str, limit: int = MAX_TAIL) -> str:
    """The last whole lines of ``text``, at most ``limit`` characters; of a longer last line its end, after "…"."""
    if len(text) <= limit:
        return text
    # One character more than is kept: an end of a line there says that what is kept begins with a line.
    _, cut, lines = text[-limit - 1 :].partition("\n")
    return lines if cut and lines else "…" + text[1 - limit :]


#: Before a line that Ray forwards from an actor: (MakerActor pid=12, ip=10.0.0.1), perhaps coloured.
_OF_AN_ACTOR = r"(?:\x1b\[[0-9;]*m)*(?:\([^()]*pid=[^()]*\))?(?:\x1b\[[0-9;]*m)*\s*"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:,.]+"
_ROUTINE = re.compile(
    rf"{_OF_AN_ACTOR}(?:{_DATE} rlhf\S* INFO |{_DATE}\s+INFO \S+:[0-9]+ -- |{_DATE}\s+WARNING worker\.py:[0-9]+ -- )"
)
#: Python's own form of a warning; the line of source that it is about may follow, indented.
_WARNING = re.compile(rf"{_OF_AN_ACTOR}\S+\.py:[0-9]+: [A-Z][A-Za-z]*Warning: ")


def without_routine(text: str) -> str:
    """A log without what says nothing about a failure: our own and Ray's INFO lines, Ray's warnings about how it was
    started, and Python's warnings. What user code printed, and every other line, stays."""
    kept = []
    after_warning = False
    for line in text.splitlines(keepends=True):
        routine = _ROUTINE.match(line) or _WARNING.match(line) or (after_warning and line.startswith((" ", "\t")))
        after_warning = _WARNING.match(line) is not None
        if not routine:
            kept.append(line)
    return "".join(kept)
