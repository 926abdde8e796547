"""Checks of all files that a job needs, before any weight is loaded.

The coordinator runs them first; `rlhfjob validate` runs them where it can reach the files. Neither Ray nor the
model is loaded. Everything found wrong is permanent: another attempt would find the same.
"""

import logging
from dataclasses import dataclass
from typing import Any

from rlhf_api.conditions import Reason
from rlhf_api.prompts import Prompts
from rlhf_api.run import RunConfig
from rlhf_api.status import SourceStatus

from rlhf_runtime.data.prompt_rows import PromptRows, open_rows, said
from rlhf_runtime.data.prompts import (
    LengthPolicy,
    Prompt,
    PromptSet,
    TrainingPrompts,
    columns_of,
    held_out_prompts,
)
from rlhf_runtime.data.templates import TokenizerEncoder
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.model_folder import ModelFolder
from rlhf_runtime.models.role_models import resolved
from rlhf_runtime.models.tokenizer import load_tokenizer
from rlhf_runtime.preflight.memory import Need
from rlhf_runtime.rewards.runner import RewardRunner
from rlhf_runtime.storage.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the checks found, for the coordinator to go on with.

    tokenizer      a transformers tokenizer
    eos_id         ends a completion
    pad_id         fills batches; the end token's id where the tokenizer has none. Masks never come from it
    training       the order of training prompts
    held_out       the prompts to evaluate on, none without `evaluation`
    sources        by field of the spec: rows of each source, and what became of them
    needs          the least memory of each role
    notes          what is right and worth knowing, a sentence each
    """

    model: ModelFolder
    tokenizer: Any
    eos_id: int
    pad_id: int
    training: TrainingPrompts
    held_out: list[Prompt]
    sources: dict[str, SourceStatus]
    needs: tuple[Need, ...]
    notes: tuple[str, ...]


def preflight(config: RunConfig, directory: RunDirectory) -> Preflight:
    """All checks, the quick ones first. Raises RunFailure for the first that fails."""
    directory.remove_probe(directory.write_probe())
    found = check_files(config)
    _check_endpoints(config, found)
    return found


def check_files(config: RunConfig) -> Preflight:
    """The checks that need no storage. Raises RunFailure for the first that fails."""
    roles = resolved(config, weights=False)
    model = roles.folders["actor"]
    rows = open_rows(config.prompts, "prompts")
    held_out_rows = open_rows(config.evaluation, "evaluation") if config.evaluation is not None else None
    _check_rewards(config, rows.columns, None if held_out_rows is None else held_out_rows.columns)
    _check_json(config, rows, held_out_rows)
    # transformers imports torchao for any model, and torch then warns of torchao's code: nothing for a user to mend.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    # Imported here, as it takes seconds: what needs no torch has been checked before.
    from rlhf_runtime.preflight.models import Lengths, check_models

    tokenizer = load_tokenizer(config.models.actor.uri, model)
    sets = _prompt_sets(config.prompts, rows, held_out_rows, tokenizer)
    longest = max(some.longest for some in sets.values())
    lengths = Lengths(prompt=longest, completion=config.rollout.max_new_tokens)
    findings = check_models(config, roles, tokenizer, lengths)
    return Preflight(
        model=model,
        tokenizer=tokenizer,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        training=TrainingPrompts(sets["prompts"], config.prompts.seed, config.prompts.shuffle),
        held_out=held_out_prompts(sets["evaluation"]) if "evaluation" in sets else [],
        sources={field: some.counts for field, some in sets.items()},
        needs=findings.needs,
        notes=findings.notes,
    )


def _check_rewards(config: RunConfig, columns: tuple[str, ...], held_out: tuple[str, ...] | None) -> None:
    """Functions can be imported, and called with the columns of what they score."""
    own = None if config.evaluation is None else config.evaluation.rewards
    with RewardRunner(config.rewards) as rewards:
        for some in {columns} if own is not None or held_out is None else {columns, held_out}:
            rewards.check_importable(some)
    if own is not None and held_out is not None:
        with RewardRunner(own, field="evaluation.rewards") as rewards:
            rewards.check_importable(held_out)


def _check_json(config: RunConfig, rows: PromptRows, held_out: PromptRows | None) -> None:
    """Endpoints can be sent the columns of every prompt that they will be asked about."""
    asked = [("rewards", config.rewards, rows)]
    if config.evaluation is not None and held_out is not None:
        own = config.evaluation.rewards
        asked.append(("rewards", config.rewards, held_out) if own is None else ("evaluation.rewards", own, held_out))
    for field, rewards, some in asked:
        for index, reward in enumerate(rewards):
            if reward.http is not None and some.beyond_json is not None:
                raise RunFailure(
                    Reason.PROMPTS_INVALID,
                    f"{some.beyond_json}, expected a number that JSON has, as {field}[{index}] ({reward.subject}) gets "
                    "the columns; null is one",
                    permanent=True,
                )


def _check_endpoints(config: RunConfig, found: Preflight) -> None:
    """Endpoints are there, and answer: asked about a prompt's empty completion, which a policy may give any time."""
    own = None if config.evaluation is None else config.evaluation.rewards
    asked = [(RewardRunner(config.rewards), found.training.prompt_at(0))]
    if own is not None:
        asked.append((RewardRunner(own, field="evaluation.rewards"), found.held_out[0]))
    for rewards, prompt in asked:
        rewards.check_endpoints([prompt.value], [prompt.completion("")], columns_of([prompt]))


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
            Reason.PROMPTS_INVALID,
            "prompts.chatTemplate: no row has messages, which it would make text of; expected a list of {role, "
            f"content}} under {prompts.prompt_key!r} (promptKey)",
            permanent=True,
        )
    taken = frozenset(said(row.prompt) for row in held_out) if held_out is not None else frozenset()
    sets = {"prompts": PromptSet(rows, encoder, lengths, "prompts", taken)}
    if held_out is not None:
        sets["evaluation"] = PromptSet(held_out, encoder, lengths, "evaluation")
    return sets
