"""Checks of all files that a job needs, before any weight is loaded.

The coordinator runs them first; `rlhfjob validate` runs them where it can reach the files. Neither Ray nor the
model is loaded. Everything found wrong is permanent: another attempt would find the same.
"""

from dataclasses import dataclass
from typing import Any

from rlhf_api.conditions import MODEL_INVALID, PROMPTS_INVALID
from rlhf_api.run import RunConfig

from rlhf_runtime.data.prompt_rows import column_names, load_rows
from rlhf_runtime.data.prompts import Prompt, PromptSet, TrainingPrompts, encoder, held_out_prompts, training_rows
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.model_folder import ModelFolder, model_folder
from rlhf_runtime.rewards.runner import RewardRunner
from rlhf_runtime.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the checks found, for the coordinator to go on with.

    tokenizer      a transformers tokenizer
    eos_id         ends a completion
    pad_id         fills batches; the end token's id where the tokenizer has none. Masks never come from it
    training       the order of training prompts
    held_out       the prompts to evaluate on, none without `evaluation`
    taken_out      training rows left out because their text is a held-out prompt's
    """

    model: ModelFolder
    tokenizer: Any
    eos_id: int
    pad_id: int
    training: TrainingPrompts
    held_out: list[Prompt]
    taken_out: int


def preflight(config: RunConfig, directory: RunDirectory) -> Preflight:
    """All checks, the quick ones first. Raises RunFailure for the first that fails."""
    directory.remove_probe(directory.write_probe())
    return check_files(config)


def check_files(config: RunConfig) -> Preflight:
    """The checks that need no storage. Raises RunFailure for the first that fails."""
    model = model_folder(config.models.actor.uri, "models.actor")
    held_out_rows = load_rows(config.evaluation, "evaluation") if config.evaluation is not None else []
    rows, taken_out = training_rows(config.prompts, held_out_rows)
    with RewardRunner(config.rewards) as rewards:
        for columns in {column_names(some) for some in (rows, held_out_rows) if some}:
            rewards.check_importable(columns)
    tokenizer = load_tokenizer(config.models.actor.uri, model)
    encode = encoder(tokenizer)
    training = PromptSet(rows, encode, config.prompts.max_prompt_tokens)
    held_out = PromptSet(held_out_rows, encode, config.prompts.max_prompt_tokens)
    _check_context(model, max(training.longest, held_out.longest), config.rollout.max_new_tokens)
    return Preflight(
        model=model,
        tokenizer=tokenizer,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        training=TrainingPrompts(training, config.prompts.seed),
        held_out=held_out_prompts(held_out),
        taken_out=taken_out,
    )


def load_tokenizer(uri: str, model: ModelFolder) -> Any:
    """The transformers tokenizer in the folder of the model at ``uri``. Raises RunFailure ModelInvalid (permanent)."""
    # Imported here: it takes seconds, and what else is wrong is said before.
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model.path), local_files_only=True)
    except Exception as error:
        # transformers says that there is no tokenizer, or a broken one, by many kinds of exception.
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise RunFailure(
            MODEL_INVALID,
            f"models.actor.uri: {uri}: no tokenizer can be loaded from {model.path}: {first}",
            permanent=True,
        ) from error
    if tokenizer.eos_token_id is None:
        raise RunFailure(
            MODEL_INVALID,
            f"models.actor.uri: {uri}: the tokenizer in {model.path} has no end-of-sequence token, so no completion "
            "could end; set eos_token in its tokenizer_config.json",
            permanent=True,
        )
    if model.vocabulary is not None and len(tokenizer) > model.vocabulary:
        raise RunFailure(
            MODEL_INVALID,
            f"models.actor.uri: {uri}: the tokenizer in {model.path} has {len(tokenizer)} tokens, the model's "
            f"embedding {model.vocabulary} (vocab_size in config.json): they do not belong together",
            permanent=True,
        )
    return tokenizer


def _check_context(model: ModelFolder, longest: int, new_tokens: int) -> None:
    if model.context is not None and longest + new_tokens > model.context:
        raise RunFailure(
            PROMPTS_INVALID,
            f"the longest prompt has {longest} tokens and rollout.maxNewTokens is {new_tokens}: together "
            f"{longest + new_tokens}, but the model in {model.path} has {model.context} positions",
            permanent=True,
        )
