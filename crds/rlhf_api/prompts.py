"""``spec.prompts`` and ``spec.evaluation``: what is trained and evaluated on."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rlhf_api.rewards import Rewards
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
    """Prompts from files or from a reasoning_gym task: exactly one of `uri` and `reasoningGym`."""

    model_config = ConfigDict(json_schema_extra=cel(_ONE_SOURCE))

    uri: Uri | None = None
    """A file of UTF-8 JSON Lines (`.jsonl`, `.json`, `.jsonl.gz`) or Parquet (`.parquet`), a folder of such files, or
    several by a `*` in the last part: an absolute path, `package://PACKAGE/FILE`, `s3://BUCKET/KEY`,
    `hf://datasets/ORG/NAME[@REVISION]/PATH`, `http(s)://HOST/FILE`. Default none, 1 to 2048 characters."""
    reasoning_gym: ReasoningGym | None = None
    """A reasoning_gym task. Default none."""
    prompt_key: Annotated[str, Field(min_length=1, max_length=128)] = "prompt"
    """The key of a row that holds the prompt: text, or a list of messages `{role, content}`; the other keys go to
    the reward function. Default prompt, 1 to 128 characters."""


class Prompts(PromptSource):
    """What the policy is trained on. Held-out prompts are left out of it, by what they say."""

    chat_template: Annotated[str, Field(min_length=1, max_length=32_768)] | None = None
    """A Jinja template that makes one text of a list of messages, here and in `evaluation`. Default none: the
    tokenizer's own. 1 to 32,768 characters."""
    max_prompt_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Longest prompt, here and in `evaluation`. Tokens. Default 512, range 1 to 1,000,000."""
    overlong: Literal["Error", "Drop", "TruncateLeft"] = "Error"
    """What is done with a longer prompt, here and in `evaluation`: Error refuses the job and names the row, Drop
    leaves the row out, TruncateLeft keeps the prompt's end (and its first token, if that is the tokenizer's
    beginning of a sequence). Default Error."""
    shuffle: bool = True
    """Whether each pass over the rows has an order of its own, or all have the source's. Default true."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of the order of prompts and of sampling. Default 0, range 0 to 2,147,483,647."""


class Evaluation(PromptSource):
    """Held-out prompts, sampled once each with the rollout's temperature, topP and topK; their mean reward is the
    score."""

    every_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Evaluate after every so many episodes (and before the first and after the last). Default 1, range 1 to
    1,000,000."""
    rewards: Rewards | None = None
    """What held-out completions are scored with, for instance their true accuracy where a model's opinion is trained
    on. Default none: the job's own rewards. 1 to 16 items."""
