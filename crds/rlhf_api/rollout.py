"""``spec.rollout``: how much is sampled in an episode, and how."""

from typing import Annotated

from pydantic import Field

from rlhf_api.schema import ApiModel


class Rollout(ApiModel):
    """How much is sampled in an episode, and how."""

    prompts_per_episode: Annotated[int, Field(ge=1, le=1_000_000)]
    """Prompts (groups) trained in one episode. Required. Range 1 to 1,000,000."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=4096)]
    """Completions of each prompt: the group; GRPO compares them, so it needs 2 or more. Required. Range 1 to 4096."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    """A completion is cut after so many tokens. Required. Range 1 to 1,000,000."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Sampling temperature; log-probs are of the distribution really sampled from. Default 1, range above 0 to 100."""
