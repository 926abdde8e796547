"""A few rollouts of each episode, for people to read: ``attempts/N/samples/episode-000012.jsonl``."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict

from rlhf_runtime.experience.messages import GroupSummary
from rlhf_runtime.storage.run_directory import AttemptDirectory, RunDirectory

#: Groups shown of each episode: the first ones, which are as random as any, because the order of prompts is.
SHOWN_GROUPS = 4
#: Episodes of an attempt whose samples are kept: the newest, beside the first to compare them with.
KEPT_EPISODES = 20

_NAME = re.compile(r"^episode-\d{6,}\.jsonl$")


def is_shown(cursor: int, prompts_per_episode: int) -> bool:
    """Whether this group's texts are kept."""
    return cursor % prompts_per_episode < SHOWN_GROUPS


def write_samples(
    directory: RunDirectory, attempt: AttemptDirectory, episode: int, groups: Iterable[GroupSummary]
) -> None:
    """Write the shown rollouts of an episode (from 1), one a line, and remove those between the first and the newest.

    A line is an object with prompt, completion, reward, advantage and versions [oldest, newest], and with the
    group's prompt cursor.
    """
    lines = [
        json.dumps({"cursor": group.dispatch.cursor, **asdict(rollout)}, ensure_ascii=False)
        for group in groups
        for rollout in group.shown
    ]
    directory.write(attempt.samples / f"episode-{episode:06d}.jsonl", "".join(line + "\n" for line in lines).encode())
    names = [name for name in directory.names(attempt.samples) if _NAME.match(name)]
    for name in names[1:-KEPT_EPISODES]:
        directory.delete(attempt.samples / name)
