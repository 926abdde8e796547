"""Checks of all files that a job needs, before any weight is loaded.

The coordinator runs them first; `rlhfjob validate` runs them where it can reach the files. Neither Ray nor the
model is loaded. Everything found wrong is permanent: another attempt would find the same.
"""

from dataclasses import dataclass
from typing import Any

from rlhf_api.conditions import MODEL_INVALID, PROMPTS_INVALID
from rlhf_api.prompts import Prompts
from rlhf_api.run import RunConfig
from rlhf_api.status import SourceStatus

from rlhf_runtime.data.prompt_rows import PromptRows, open_rows, said
from rlhf_runtime.data.prompts import (
    LengthPolicy,
    Prompt,
    PromptSet,
    TrainingPrompts,
    held_out_prompts,
)
from rlhf_runtime.data.templates import TokenizerEncoder
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
    sources        by field of the spec: rows of each source, and what became of them
    """

    model: ModelFolder
    tokenizer: Any
    eos_id: int
    pad_id: int
    training: TrainingPrompts
    held_out: list[Prompt]
    sources: dict[str, SourceStatus]


def preflight(config: RunConfig, directory: RunDirectory) -> Preflight:
    """All checks, the quick ones first. Raises RunFailure for the first that fails."""
    directory.remove_probe(directory.write_probe())
    return check_files(config)


def check_files(config: RunConfig) -> Preflight:
    """The checks that need no storage. Raises RunFailure for the first that fails."""
    model = model_folder(config.models.actor.uri, "models.actor", weights=False)
    rows = open_rows(config.prompts, "prompts")
    held_out_rows = open_rows(config.evaluation, "evaluation") if config.evaluation is not None else None
    with RewardRunner(config.rewards) as rewards:
        for columns in {some.columns for some in (rows, held_out_rows) if some is not None}:
            rewards.check_importable(columns)
    tokenizer = load_tokenizer(config.models.actor.uri, model)
    sets = _prompt_sets(config.prompts, rows, held_out_rows, tokenizer)
    _check_context(model, max(some.longest for some in sets.values()), config.rollout.max_new_tokens)
    return Preflight(
        model=model,
        tokenizer=tokenizer,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        training=TrainingPrompts(sets["prompts"], config.prompts.seed, config.prompts.shuffle),
        held_out=held_out_prompts(sets["evaluation"]) if "evaluation" in sets else [],
        sources={field: some.counts for field, some in sets.items()},
    )


def _prompt_sets(
    prompts: Prompts, rows: PromptRows, held_out: PromptRows | None, tokenizer: Any
) -> dict[str, PromptSet]:
    """The prompts of each source, by its field of the spec; held-out ones are not trained on."""
    encoder = TokenizerEncoder(tokenizer, prompts.chat_template)
    lengths = LengthPolicy(prompts.max_prompt_tokens, prompts.overlong)
    sources = {"prompts": rows} if held_out is None else {"prompts": rows, "evaluation": held_out}
    for field, some in sources.items():
        encoder.check_template(conversational=some.conversational, field=field)
    if prompts.chat_template is not None and not any(some.conversational for some in sources.values()):
        raise RunFailure(
            PROMPTS_INVALID,
            "prompts.chatTemplate: no row has messages, which it would make text of; expected a list of {role, "
            f"content}} under {prompts.prompt_key!r} (promptKey)",
            permanent=True,
        )
    taken = frozenset(said(row.prompt) for row in held_out) if held_out is not None else frozenset()
    sets = {"prompts": PromptSet(rows, encoder, lengths, "prompts", taken)}
    if held_out is not None:
        sets["evaluation"] = PromptSet(held_out, encoder, lengths, "evaluation")
    return sets


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
