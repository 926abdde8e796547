"""What is kept of the end of a log."""

import pytest
from rlhf_api.tails import last_lines, without_routine


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("one\ntwo\n", "one\ntwo\n", id="short: all of it"),
        pytest.param("first\nsecond\nthird\n", "third\n", id="no line without its beginning"),
        pytest.param("first\n123456789\n", "123456789\n", id="lines that just fit"),
        pytest.param("first\n1234567890\n", "…34567890\n", id="a last line that does not fit: its end"),
        pytest.param("first, and 34567890", "… 34567890", id="a text of one line"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_the_last_lines_of_a_text(text: str, expected: str) -> None:
    assert last_lines(text, 10) == expected


#: Lines as a run wrote them.
NOISE = """\
2026-12-01 03:18:35,996\tWARNING worker.py:1681 -- SIGTERM handler is not set because current thread is not the main \
thread.
2026-12-01 03:18:36,010\tINFO worker.py:1821 -- Started a local Ray instance.
2026-12-01 03:18:37,500 rlhf.coordinator INFO 2 makers and 1 trainers are placed
(MakerActor pid=12, ip=10.0.0.1) 2026-12-01 03:18:38,500 rlhf.maker INFO policy version 0
\x1b[36m(TrainerActor pid=13)\x1b[0m 2026-12-01 03:18:38,500 rlhf.trainer INFO rank 0 of 1
/venv/lib/ca_functions.py:194: SyntaxWarning: "is" with a literal. Did you mean "=="?
  if memoize is "recursive":
"""
TELLING = """\
2026-12-01 03:18:35,996\tERROR services.py:99 -- the raylet died
2026-12-01 03:18:37,500 rlhf.coordinator WARNING maker 1 is replaced
(MakerActor pid=12) Traceback (most recent call last):
(MakerActor pid=12)   File "m.py", line 3, in f
KeyError: 'solution'
  loading judge weights, 3 minutes
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(NOISE, "", id="a normal start"),
        pytest.param(TELLING, TELLING, id="what user code said, and errors"),
        pytest.param(NOISE + TELLING + NOISE, TELLING, id="both"),
        pytest.param(
            "".join(f"{a}\n{b}\n" for a, b in zip(["x"] * 4, NOISE.splitlines(), strict=False)),
            "x\n" * 4,
            id="line by line",
        ),
    ],
)
def test_a_log_without_its_routine(text: str, expected: str) -> None:
    assert without_routine(text) == expected
