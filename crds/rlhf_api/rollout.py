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
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Each token is drawn from the fewest likeliest tokens whose probabilities reach topP (nucleus sampling), taken
    after temperature and among those that topK leaves. The policy that is trained is this one: old and new log-probs,
    ratio, entropy and KL are of the kept tokens' renormalised probabilities. Default 1: all, range above 0 to 1."""
    top_k: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Each token is drawn from the topK likeliest, and trained so, as with topP; ties with the last are kept too. 1
    always takes the likeliest and so trains nothing. Default none: all. Range 1 to 1,000,000."""
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=16)] = []
    """Strings that end a completion, found in its text across tokens; the token that completes one is its last, and
    stays. Default none, at most 16 of 1 to 64 characters."""
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=2_147_483_647)]], Field(max_length=16)] = []
    """Tokens that end a completion, beside the tokenizer's end of sequence and those of the model's
    generation_config.json. Default none, at most 16, range 0 to 2,147,483,647."""
