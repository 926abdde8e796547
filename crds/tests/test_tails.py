"""What is kept of the end of a log."""

import pytest
from rlhf_api.tails import last_lines


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
