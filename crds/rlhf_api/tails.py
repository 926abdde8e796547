"""The end of a log or traceback, as reports and statuses keep it: whole lines, and not many."""

#: Most characters of a tail that are kept.
MAX_TAIL = 4096


def last_lines(text: str, limit: int = MAX_TAIL) -> str:
    """The last whole lines of ``text``, at most ``limit`` characters; of a longer last line its end, after "…"."""
    if len(text) <= limit:
        return text
    # One character more than is kept: an end of a line there says that what is kept begins with a line.
    _, cut, lines = text[-limit - 1 :].partition("\n")
    return lines if cut and lines else "…" + text[1 - limit :]
