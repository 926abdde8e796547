"""Problems of a `reasoning_gym` task as lines of JSON."""

import dataclasses
import difflib
import json
from collections.abc import Iterator

from rlhf_api.prompts import ReasoningGym

from rlhf_runtime.data.source_files import LineFile, invalid, unpacked
from rlhf_runtime.failures import RunFailure

#: The key of a line that holds the question, beside `answer` and `metadata`.
QUESTION = "question"


def task_lines(gym: ReasoningGym, field: str) -> LineFile:
    """All problems of a task. Raises RunFailure PromptsInvalid."""
    # Imported here: it is large, and jobs with a file of their own need not have it.
    from reasoning_gym.factory import DATASETS

    where = f"{field}.reasoningGym"
    if gym.task not in DATASETS:
        close = difflib.get_close_matches(gym.task, DATASETS, n=3)
        invalid(
            f"{where}.task: there is no task {gym.task!r}"
            + (f"; close: {', '.join(close)}" if close else f"; there are {len(DATASETS)}, for instance chain_sum")
        )
    known = {parameter.name for parameter in dataclasses.fields(DATASETS[gym.task][1])} - {"seed", "size"}
    unknown = sorted(set(gym.parameters) - known)
    if unknown:
        invalid(f"{where}.parameters: {gym.task} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    return unpacked(where, _problems(gym, where), lambda number: f"problem {number - 1} of {gym.task}")


def _problems(gym: ReasoningGym, where: str) -> Iterator[bytes]:
    import reasoning_gym

    try:
        for entry in reasoning_gym.create_dataset(gym.task, size=gym.size, seed=gym.seed, **gym.parameters):
            row = {QUESTION: entry["question"], "answer": entry["answer"], "metadata": entry["metadata"]}
            yield json.dumps(row, default=str).encode()
    except RunFailure:
        raise
    except Exception as error:
        # The task's own code says what it does not like by any kind of exception.
        invalid(f"{where}: {gym.task} refuses {gym.parameters}: {type(error).__name__}: {error}", error)
