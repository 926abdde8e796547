"""The report of a run as one HTML file: no network, no scripts, everything that came from outside escaped."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from rlhf_api.run import RunConfig
from rlhf_api.status import EpisodeReport

from rlhf_cli.reading.run_record import RunRecord, parts_of_the_reward
from rlhf_cli.reading.samples import Sample
from rlhf_cli.reading.svg import Series, line_chart, number, stacked_bars

#: Rows of the episode table; a longer run is thinned, and the page says so.
MAX_ROWS = 2000
#: Characters of a reward's name that fit over a chart.
MAX_TITLE = 64


def html(record: RunRecord) -> str:
    """The whole page, a few hundred KiB at most for any number of episodes."""
    title = f"{record.config.name} · RLHFJob report"
    css = (files("rlhf_cli") / "report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(_sections(record))
        + "\n</main>\n</body>\n</html>\n"
    )


def _sections(record: RunRecord) -> Iterator[str]:
    tone = "good" if record.succeeded else "bad"
    yield f"<h1>{escape(record.config.name)}</h1>"
    ended = f'<span class="{tone}">{escape(record.outcome)}</span>'
    yield f'<p class="lead">{ended} · {escape(_headline(record.config))}</p>'
    if record.episodes:
        yield _figures(record)
        yield f"<h2>Episodes</h2>\n{_plots(record)}"
        yield _table(record.episodes)
    if record.samples:
        yield f"<h2>Sample rollouts</h2>\n{_samples(record.samples)}"
    if record.results:
        yield f"<h2>Results</h2>\n{_pairs(record.results)}"
    yield f"<h2>Settings</h2>\n{_pairs(dict(flattened(record.config.to_dict())))}"
    if record.versions:
        yield f"<h2>Environment</h2>\n{_pairs(record.versions)}"
    job = f"{record.config.namespace}/{record.config.name}"
    yield f"<footer>RLHFJob {escape(job)}, written by rlhfjob.</footer>"


def _headline(config: RunConfig) -> str:
    rollout = config.rollout
    return (
        f"{config.algorithm.type}, {config.mode}, {_count(config.makers.replicas, 'maker')}, "
        f"{_count(config.trainers.replicas, 'trainer')}, "
        f"{rollout.prompts_per_episode} × {rollout.samples_per_prompt} samples an episode, "
        f"max staleness {config.max_staleness}"
    )


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _figures(record: RunRecord) -> str:
    episodes = record.episodes
    last = episodes[-1]
    scores = record.scores()
    seconds = sum(e.seconds for e in episodes)
    figures = [("episodes trained", f"{last.episode} / {record.config.episodes}")]
    if scores:
        figures.append(("score on held-out prompts, first → last", f"{scores[0][1]:.3f} → {scores[-1][1]:.3f}"))
    figures += [
        ("mean reward, first → last episode", f"{episodes[0].reward:.3f} → {last.reward:.3f}"),
        ("samples trained", f"{sum(e.samples for e in episodes):,}"),
        ("completion tokens trained per second", number(sum(e.tokens for e in episodes) / max(seconds, 1e-9))),
        ("in episodes, h:mm:ss", str(timedelta(seconds=round(seconds)))),
    ]
    cells = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in figures
    )
    return f'<div class="figures">{cells}</div>'


def _plots(record: RunRecord) -> str:
    episodes = record.episodes

    def line(name: str, style: int, attribute: str) -> Series:
        points = [(float(e.episode), float(getattr(e, attribute))) for e in episodes]
        return Series(name=name, points=points, style=style)

    # A publish may go on while the next episode begins; the bars show what an episode's own time was spent on.
    rest = [(e, max(0.0, e.seconds - e.train_seconds - e.wait_seconds)) for e in episodes]
    sync = [(float(e.episode), min(e.sync_seconds, left)) for e, left in rest]
    others = [(float(e.episode), left - min(e.sync_seconds, left)) for e, left in rest]
    charts = [
        line_chart(
            "Reward and score",
            "mean reward per sample",
            [line("reward", 0, "reward"), Series(name="score (held out)", points=record.scores(), style=1)],
        ),
        *_each_reward(episodes),
        *_distances(episodes),
        line_chart("KL, sampling ‖ trained policy", "nats per token", [line("KL", 2, "kl")], from_zero=True),
        *_critic(episodes),
        line_chart(
            "Staleness",
            "policy versions",
            [line("mean", 4, "staleness_mean"), line("largest", 3, "staleness_max")],
            from_zero=True,
            integer=True,
        ),
        line_chart("Throughput", "tokens trained / s", [line("tokens/s", 0, "tokens_per_second")], from_zero=True),
        stacked_bars(
            "Where the time went",
            "seconds",
            [float(e.episode) for e in episodes],
            [
                line("training", 0, "train_seconds"),
                line("waiting", 1, "wait_seconds"),
                Series(name="weight sync", points=sync, style=3),
                Series(name="other", points=others, style=5),
            ],
        ),
        line_chart("Entropy", "nats per token", [line("entropy", 2, "entropy")], from_zero=True),
    ]
    return '<div class="plots">' + "".join(f'<div class="plot">{chart}</div>' for chart in charts) + "</div>"


def _each_reward(episodes: Sequence[EpisodeReport]) -> list[str]:
    """A chart for each of several rewards: their scales differ."""
    return [
        line_chart(
            name if len(name) <= MAX_TITLE else "…" + name[-MAX_TITLE:],
            "mean per sample, unweighted",
            [Series(name="", points=[(e.episode, e.rewards[name]) for e in episodes if name in e.rewards], style=5)],
        )
        for name in parts_of_the_reward(episodes)
    ]


def _distances(episodes: Sequence[EpisodeReport]) -> list[str]:
    """How far the policy is from the reference, and from the teacher, for a job that has one."""
    return [
        line_chart(title, "nats per token", [Series(name="", points=points, style=style)], from_zero=True)
        for title, attribute, style in (
            ("KL, trained policy ‖ reference", "reference_kl", 3),
            ("KL, trained policy ‖ teacher", "teacher_kl", 4),
        )
        if (points := _points(episodes, attribute))
    ]


def _critic(episodes: Sequence[EpisodeReport]) -> list[str]:
    """PPO's critic: what it gets wrong, and what it explains."""
    return [
        line_chart(title, unit, [Series(name="", points=points, style=1)])
        for title, unit, attribute in (
            ("Critic's loss", "squared reward units", "value_loss"),
            ("Critic: explained variance", "share of the returns' variance", "explained_variance"),
        )
        if (points := _points(episodes, attribute))
    ]


def _points(episodes: Sequence[EpisodeReport], attribute: str) -> list[tuple[float, float]]:
    """Of the episodes that have it."""
    values = ((e.episode, getattr(e, attribute)) for e in episodes)
    return [(float(episode), float(value)) for episode, value in values if value is not None]


#: Columns of the episode table: heading, attribute, digits after the point. What no episode has is left out.
_COLUMNS = (
    ("episode", "episode", 0),
    ("attempt", "attempt", 0),
    ("version", "policy_version", 0),
    ("reward", "reward", 3),
    ("± std", "reward_std", 3),
    ("score", "score", 3),
    ("KL, nats", "kl", 4),
    ("KL to reference", "reference_kl", 4),
    ("KL to teacher", "teacher_kl", 4),
    ("loss", "loss", 4),
    ("critic's loss", "value_loss", 4),
    ("explained", "explained_variance", 3),
    ("entropy", "entropy", 3),
    ("clipped", "clip_fraction", 3),
    ("ESS", "effective_sample_size", 3),
    ("grad. norm", "gradient_norm", 3),
    ("changed", "changed_weights", 3),
    ("log-prob gap", "logprob_gap_mean", 5),
    ("staleness", "staleness_mean", 2),
    ("max", "staleness_max", 0),
    ("samples", "samples", 0),
    ("tokens", "tokens", 0),
    ("tokens/s", "tokens_per_second", 0),
    ("truncated", "truncated_fraction", 3),
    ("dropped", "dropped", 0),
    ("seconds", "seconds", 2),
    ("train", "train_seconds", 2),
    ("wait", "wait_seconds", 2),
    ("sync", "sync_seconds", 2),
)


def _table(episodes: Sequence[EpisodeReport]) -> str:
    step = -(-len(episodes) // MAX_ROWS)
    # Counted from the end, so that the last episode is always there.
    rows = list(reversed(episodes[::-1][::step]))
    each = parts_of_the_reward(episodes)
    columns = [
        (heading, name, digits)
        for heading, name, digits in _COLUMNS
        # A score is not in every job's first episodes, but its column says that there is none.
        if name == "score" or any(getattr(e, name) is not None for e in episodes)
    ]
    headings = [*(heading for heading, _, _ in columns), *each]
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    rendered = (
        [_cell(getattr(e, name), digits) for _, name, digits in columns]
        + [_cell(e.rewards.get(name), 3) for name in each]
        for e in rows
    )
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>" for cells in rendered)
    summary = f"All {len(episodes)} episodes" if step == 1 else f"Every {step}th of {len(episodes)} episodes"
    return (
        f"<details{' open' if len(rows) <= 60 else ''}><summary>{summary}</summary>"
        f'<div class="scroll tall"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )


def _cell(value: float | int | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _samples(samples: Sequence[Sample]) -> str:
    parts = []
    for episode, group in groupby(samples, key=lambda s: s.episode):
        cards = "".join(_card(sample) for sample in group)
        parts.append(f'<h3>Episode {episode}</h3><div class="samples">{cards}</div>')
    return "".join(parts)


def _card(sample: Sample) -> str:
    oldest, newest = sample.versions
    version = f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"
    return (
        f'<div class="sample"><header><span>reward <b>{number(sample.reward)}</b></span>'
        f"<span>advantage <b>{number(sample.advantage)}</b></span><span>{version}</span></header>"
        f'<pre class="prompt">{escape(sample.prompt)}</pre>'
        f'<pre class="completion">{escape(sample.completion) or "&nbsp;"}</pre></div>'
    )


def _pairs(pairs: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><th>{escape(key)}</th><td><code>{escape(str(value))}</code></td></tr>" for key, value in pairs.items()
    )
    return f'<div class="scroll"><table class="spec"><tbody>{rows}</tbody></table></div>'


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, value) of every leaf of a spec, paths as `kubectl explain` writes them: `rewards[0].function`."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and value:
        for i, inner in enumerate(value):
            yield from flattened(inner, f"{path}[{i}]")
    elif not isinstance(value, Mapping | list | tuple):
        yield path, str(value)
