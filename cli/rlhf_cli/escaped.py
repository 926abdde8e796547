"""Text from models, logs and other machines, made fit to print."""

import re

_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-_])")


def escaped(text: str) -> str:
    """The text without colours, its other control characters spelt out: nothing in it commands a terminal."""
    plain = _ESCAPE_SEQUENCE.sub("", text).expandtabs()
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in plain)
