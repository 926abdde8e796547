"""``spec.rollout``: how much is sampled in an episode, and how."""

from typing import Annotated

from pydantic import Field

from rlhf_api.schema import ApiModel


class Rollout(ApiModel):
    """How much is sampled in an episode, and how."""

    prompts_per_episode: Annotated[int, Field(ge=1, le=1_000_000)]
    """Number of prompts that an episode trains; the samples of one prompt are a group. Required. Range 1 to
    1,000,000."""
    samples_per_prompt: Annotated[int, Field(ge=1, le=4096)]
    """Number of completions sampled for each prompt. GRPO compares them and needs at least 2. Required. Range 1 to
    4096."""
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    """Largest number of tokens in a completion; a longer one is truncated. Required. Range 1 to 1,000,000."""
    temperature: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Sampling temperature. Log-probs are those of the distribution after temperature, topK and topP. Default 1, range
    above 0 to 100."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling: each token is sampled from the smallest set of most likely tokens whose probabilities sum to at
    least topP, after temperature and topK. This truncated policy is the one that is trained: log-probs, ratio, entropy
    and KL use the renormalised probabilities of the kept tokens. Default 1, which keeps all tokens; range above 0 to
    1."""
    top_k: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    """Each token is sampled from the topK most likely tokens and those tied with the last of them. As with topP, the
    truncated policy is the one that is trained. 1 always takes the most likely token, so nothing is learned. Default
    none, which keeps all tokens; range 1 to 1,000,000."""
    stop: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=16)] = []
    """Strings that end a completion. A string may span several tokens; the completion keeps the token that completes
    it. Default none, at most 16 items of 1 to 64 characters."""
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=2_147_483_647)]], Field(max_length=16)] = []
    """Tokens that end a completion, in addition to the tokenizer's end-of-sequence token and those in the model's
    generation_config.json. Default none, at most 16 items, range 0 to 2,147,483,647."""
