"""The report is one file that shows everything and trusts nothing; the charts are right."""

import itertools
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlhf_api.job import RLHFJob
from rlhf_api.run import run_config
from rlhf_api.status import EpisodeReport
from rlhf_cli.reading.plot import write_plot
from rlhf_cli.reading.report import flattened, html
from rlhf_cli.reading.run_record import RunRecord
from rlhf_cli.reading.samples import Sample
from rlhf_cli.reading.svg import MAX_POINTS, Series, line_chart, number, stacked_bars, thinned, ticks

EVIL = "</pre><script>alert('x')</script>&<b>"


@pytest.fixture
def make_record(
    make_job: Callable[..., RLHFJob], make_episode: Callable[..., EpisodeReport]
) -> Callable[..., RunRecord]:
    def make(count: int = 3, /, **changes: Any) -> RunRecord:
        values: dict[str, Any] = {
            "config": run_config(make_job(), "/runs", attempt=1, incarnation=1),
            "outcome": "Succeeded: 3 of 8 episodes",
            "succeeded": True,
            "episodes": [make_episode(n, score=0.5 + n / 10 if n < 5 else None) for n in range(1, count + 1)],
            "initial_score": 0.5,
        }
        return RunRecord(**{**values, **changes})

    return make


class _Page(HTMLParser):
    """Collects tags and attributes of a page, and checks that what opens also closes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta",):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_everything_in_one_file(make_record: Callable[..., RunRecord]) -> None:
    sample = Sample(episode=3, prompt="1+1=", completion="2", reward=1.0, advantage=0.5, versions=(1, 2))
    page = html(make_record(samples=[sample], results={"plot": "/runs/plot.png"}, versions={"ray": "2.60.0"}))
    seen = _Page(page)
    assert seen.tags.count("svg") == 6
    for text in (
        "tiny",
        "3 / 8",
        "0.500 → 0.800",
        "0.010 → 0.030",
        "1+1=",
        "versions 1 to 2",
        "/runs/plot.png",
        "2.60.0",
    ):
        assert text in seen.text
    assert "algorithm.optimizer.learningRate" in seen.text


def test_several_rewards_have_a_chart_and_a_column_each(
    make_record: Callable[..., RunRecord], make_episode: Callable[..., EpisodeReport]
) -> None:
    rewards = [{"exact": 0.25, EVIL: 3.5}, {"exact": 0.5}]
    seen = _Page(html(make_record(episodes=[make_episode(n, rewards=each) for n, each in enumerate(rewards, 1)])))
    assert seen.tags.count("svg") == 8
    assert seen.text.count(EVIL) == 2, "over its chart and its column"
    assert "script" not in seen.tags
    assert "0.2503.500" in seen.text
    one = _Page(html(make_record(episodes=[make_episode(1, rewards={"exact": 0.25})])))
    assert one.tags.count("svg") == 6


def test_a_ppo_run_shows_its_distance_to_the_reference_and_its_critic(
    make_record: Callable[..., RunRecord], make_episode: Callable[..., EpisodeReport], tmp_path: Path
) -> None:
    values = {"referenceKl": 0.0625, "valueLoss": 0.1875, "explainedVariance": -0.25, "effectiveSampleSize": 0.875}
    record = make_record(episodes=[make_episode(1), make_episode(2, **values)])
    seen = _Page(html(record))
    assert seen.tags.count("svg") == 9
    for text in ("KL, trained policy ‖ reference", "Critic's loss", "0.0625", "0.1875", "-0.250", "0.875"):
        assert text in seen.text
    assert "KL to teacher" not in seen.text, "what no episode has is left out"
    write_plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_the_page_asks_the_network_for_nothing(make_record: Callable[..., RunRecord]) -> None:
    page = html(make_record())
    seen = _Page(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    assert not [a for a in seen.attributes if a[0] in ("src", "href", "srcset", "style")]
    assert not re.search(r"https?:|@import|url\(", page)


@pytest.mark.parametrize("field", ["prompt", "completion", "outcome", "result", "version"])
def test_what_a_model_or_a_path_says_is_shown_and_not_obeyed(make_record: Callable[..., RunRecord], field: str) -> None:
    text = {name: EVIL if name == field else "plain" for name in ("prompt", "completion")}
    sample = Sample(episode=1, **text, reward=1.0, advantage=0.0, versions=(0, 0))
    record = make_record(
        samples=[sample],
        outcome=EVIL if field == "outcome" else "Succeeded",
        results={EVIL: EVIL} if field == "result" else {},
        versions={EVIL: EVIL} if field == "version" else {},
    )
    seen = _Page(html(record))
    assert "script" not in seen.tags
    assert EVIL in seen.text


def test_a_long_run_makes_a_small_page_that_ends_with_its_last_episode(make_record: Callable[..., RunRecord]) -> None:
    page = html(make_record(20_000))
    assert len(page) < 2_000_000
    assert "Every 10th of 20000 episodes" in page
    assert "<td>20,000</td>" in page


def test_a_run_without_episodes_still_has_a_page(make_record: Callable[..., RunRecord]) -> None:
    seen = _Page(html(make_record(0, initial_score=None, outcome="Ended after 0 of 8 episodes: X: y", succeeded=False)))
    assert "Ended after 0 of 8 episodes: X: y" in seen.text


@pytest.mark.parametrize("episodes", [1, 2, 300])
def test_the_plot_is_a_png(make_record: Callable[..., RunRecord], tmp_path: Path, episodes: int) -> None:
    write_plot(make_record(episodes), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG\r\n")


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_cover_the_data_with_round_steps(low: float, width: float) -> None:
    high = low + width
    found = ticks(low, high)
    assert 2 <= len(found) <= 14
    step = found[1] - found[0]
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= high - 1e-6 * step
    assert all(math.isclose(b - a, step, rel_tol=1e-3) for a, b in itertools.pairwise(found))


def test_ticks_of_a_share_are_tenths() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.5, "0.5"), (12345.6, "12,346"), (0.00012, "1.2e-04"), (0.81234, "0.8123")]
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert number(value) == text


def test_points_are_where_the_axes_say() -> None:
    chart = line_chart("t", "u", [Series(name="a", points=[(1, 0.0), (2, 0.5), (3, 1.0)], style=0)])
    root = ElementTree.fromstring(chart)
    line = next(e for e in root.iter("polyline"))
    points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    assert [x for x, _ in points] == pytest.approx([66, 306, 546])
    bottom, middle, top = (y for _, y in points)
    assert (bottom, top) == pytest.approx((210, 40))
    assert middle == pytest.approx((bottom + top) / 2)


def test_a_chart_leaves_out_what_is_not_a_number() -> None:
    points = [(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)]
    assert line_chart("t", "u", [Series(name="a", points=points, style=0)]).count("<circle") == 2
    assert "nothing measured" in line_chart("t", "u", [Series(name="a", points=[(1, math.nan)], style=0)])


def test_long_series_are_averaged() -> None:
    assert thinned([(1, 1.0), (2, 3.0), (3, 5.0)], most=2) == [(1.5, 2.0), (3.0, 5.0)]
    assert len(thinned([(float(i), 0.0) for i in range(100_001)])) <= MAX_POINTS


def test_bars_stack_without_gaps() -> None:
    parts = [Series(name="a", points=[(1, 1.0)], style=0), Series(name="b", points=[(1, 3.0)], style=1)]
    bars = [e.attrib for e in ElementTree.fromstring(stacked_bars("t", "s", [1], parts)).iter("rect") if len(e)]
    low, high = bars
    assert float(high["y"]) + float(high["height"]) == pytest.approx(float(low["y"]), abs=0.2)
    assert float(high["height"]) == pytest.approx(3 * float(low["height"]), rel=0.02)


def test_flattened_paths_are_as_kubectl_explain_writes_them() -> None:
    assert list(flattened({"a": {"b": [{"c": 1}, {"c": 2}]}, "empty": {}, "d": True})) == [
        ("a.b[0].c", "1"),
        ("a.b[1].c", "2"),
        ("d", "True"),
    ]
