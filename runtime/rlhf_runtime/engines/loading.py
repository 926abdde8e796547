"""The engine that a RunConfig asks for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rlhf_api.conditions import Reason
from rlhf_api.run import RunConfig
from torch import nn

from rlhf_runtime.engines.ends import end_ids
from rlhf_runtime.engines.engine import Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.maths.truncation import Truncation
from rlhf_runtime.models.tokenizer import decoder_of, vocabulary_of

E = TypeVar("E", bound=TransformersEngine)


def load_engine(config: RunConfig, model: nn.Module, tokenizer: Any, folder: Path, make: Callable[..., E]) -> E:
    """An engine on `model`, the actor as loaded from `folder`; with `makers.quantization`, its weights become int8.

    `make` gets the options of a TransformersEngine. Raises RunFailure ModelInvalid (permanent) for a model that the
    engine cannot decode with, or cannot quantise.
    """
    options: dict[str, Any] = {}
    try:
        if config.makers.quantization == "Int8":
            # Only here: torchao takes seconds to import.
            from rlhf_runtime.engines.int8 import quantize, quantized_like

            quantize(model)
            options = {"as_held": quantized_like}
        return make(
            end_ids=end_ids(tokenizer, folder, config.rollout.stop_token_ids),
            max_rows=config.max_batch_samples,
            decode=decoder_of(tokenizer),
            vocabulary=vocabulary_of(tokenizer),
            **options,
        )
    except ValueError as error:
        raise RunFailure(Reason.MODEL_INVALID, f"models.actor: {error}", permanent=True) from error


def sampling_of(config: RunConfig) -> Sampling:
    return Sampling(
        temperature=config.rollout.temperature,
        max_new_tokens=config.rollout.max_new_tokens,
        seed=config.prompts.seed,
        truncation=truncation_of(config),
        stop=tuple(config.rollout.stop),
    )


def truncation_of(config: RunConfig) -> Truncation | None:
    """That of the policy, when it samples and when it is trained; None where everything is kept."""
    rollout = config.rollout
    if rollout.top_p == 1 and rollout.top_k is None:
        return None
    return Truncation(top_p=rollout.top_p, top_k=rollout.top_k)
