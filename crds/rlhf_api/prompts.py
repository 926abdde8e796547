"""``spec.prompts`` and ``spec.evaluation``: what is trained and evaluated on."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from rlhf_api.schema import PRESERVE_UNKNOWN, ApiModel, Uri, cel


class ReasoningGym(ApiModel):
    """Problems made by a `reasoning_gym` task; the same task, seed and size give the same problems."""

    task: Annotated[str, Field(min_length=1, max_length=128)]
    """Name of the task, for instance `chain_sum`. Required. 1 to 128 characters."""
    size: Annotated[int, Field(ge=1, le=10_000_000)]
    """How many problems are made. Required. Range 1 to 10,000,000."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of the task's generator. Default 0, range 0 to 2,147,483,647."""
    parameters: Annotated[
        dict[str, Any],
        # A map of free values, not a free object: the server compares a free object's keys too loosely, so that
        # renaming one would slip past the rule that the spec is immutable.
        Field(max_length=64, json_schema_extra={"additionalProperties": PRESERVE_UNKNOWN}),
    ] = {}
    """The task's own parameters, checked against the task before any weight is loaded. Default none, at most 64."""


_ONE_SOURCE = (
    "has(self.uri) != has(self.reasoningGym)",
    "exactly one of uri and reasoningGym must be set",
)


class PromptSource(ApiModel):
    """Prompts from a JSONL file or from a reasoning_gym task: exactly one of `uri` and `reasoningGym`."""

    model_config = ConfigDict(json_schema_extra=cel(_ONE_SOURCE))

    uri: Uri | None = None
    """A UTF-8 JSONL file, one object a line: an absolute path, or `package://PACKAGE/FILE`.
    Default none, 1 to 2048 characters."""
    reasoning_gym: ReasoningGym | None = None
    """A reasoning_gym task. Default none."""
    prompt_key: Annotated[str, Field(min_length=1, max_length=128)] = "prompt"
    """The key of a JSONL row that holds the prompt text; the other keys go to the reward function. Default prompt,
    1 to 128 characters."""


class Prompts(PromptSource):
    """What the policy is trained on. Held-out prompts are left out of it, by text."""

    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """A longer prompt is an error that names its row. Tokens. Default 512, range 1 to 1,000,000."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of the order of prompts and of sampling. Default 0, range 0 to 2,147,483,647."""


class Evaluation(PromptSource):
    """Held-out prompts, sampled once each at the rollout's temperature; their mean reward is the score."""

    every_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Evaluate after every so many episodes (and before the first and after the last). Default 1, range 1 to
    1,000,000."""
