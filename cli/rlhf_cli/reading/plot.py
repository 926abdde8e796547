"""The plot of a run as a PNG: reward and score, KL, staleness, throughput, by episode."""

from pathlib import Path

from rlhf_cli.reading.run_record import RunRecord

_BLUE, _ORANGE, _TEAL, _PURPLE, _PINK, _GREY = "#2563eb", "#d9730d", "#0d9488", "#7c5cd6", "#b83280", "#626b7a"


def write_plot(record: RunRecord, path: Path) -> None:
    """Write the plot; the record has at least one episode."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    x = [e.episode for e in record.episodes]
    markers = {"marker": "o", "markersize": 3} if len(x) <= 60 else {}
    style = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#c5cad3",
        "axes.labelcolor": _GREY,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": "#eceef2",
        "xtick.color": _GREY,
        "ytick.color": _GREY,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "axes.labelsize": 9,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "lines.linewidth": 1.8,
    }
    with pyplot.rc_context(style):
        figure, grid = pyplot.subplots(2, 2, figsize=(11, 6.8), dpi=150, sharex=True, layout="constrained")
        reward, kl, staleness, throughput = grid.flat
        reward.set_title("Reward and score")
        reward.plot(x, [e.reward for e in record.episodes], color=_BLUE, label="reward", **markers)
        if scores := record.scores():
            reward.plot(*zip(*scores, strict=True), color=_ORANGE, label="score (held out)", marker="o", markersize=3.5)
        reward.set_ylabel("mean reward per sample")
        kl.set_title("KL")
        kl.plot(x, [e.kl for e in record.episodes], color=_TEAL, label="sampling ‖ trained policy", **markers)
        if distances := [(e.episode, e.reference_kl) for e in record.episodes if e.reference_kl is not None]:
            kl.plot(*zip(*distances, strict=True), color=_PINK, label="trained policy ‖ reference", **markers)
        kl.set_ylabel("nats per token")
        kl.set_ylim(bottom=0)
        staleness.set_title("Staleness")
        staleness.plot(x, [e.staleness_mean for e in record.episodes], color=_PURPLE, label="mean", **markers)
        staleness.plot(x, [e.staleness_max for e in record.episodes], color=_PINK, label="largest", **markers)
        staleness.set_ylabel("policy versions")
        staleness.set_ylim(-0.08, max(1, *(e.staleness_max for e in record.episodes), 0) * 1.12)
        staleness.yaxis.set_major_locator(MaxNLocator(integer=True))
        throughput.set_title("Throughput")
        throughput.plot(x, [e.tokens_per_second for e in record.episodes], color=_BLUE, **markers)
        throughput.set_ylabel("completion tokens trained / s")
        throughput.set_ylim(bottom=0)
        for axes in (reward, kl, staleness):
            # Beside the title, where no line runs.
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.2)
        for axes in (staleness, throughput):
            axes.set_xlabel("episode")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
        figure.suptitle(f"{record.config.name}: {record.outcome}", x=0.012, ha="left", fontsize=13)
        try:
            figure.savefig(path)
        finally:
            pyplot.close(figure)
