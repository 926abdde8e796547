"""The job's models beside each other: each complete, long enough, and of one mind with the actor about token ids."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.conditions import Reason
from rlhf_api.run import RunConfig

from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.division import check_family
from rlhf_runtime.models.end_tokens import model_end_ids
from rlhf_runtime.models.model_folder import ADAPTER_CONFIG, ModelFolder
from rlhf_runtime.models.pretrained import invalid
from rlhf_runtime.models.role_models import Role, RoleModel, Roles
from rlhf_runtime.models.same_tokens import difference
from rlhf_runtime.models.tokenizer import has_tokenizer, read_tokenizer
from rlhf_runtime.preflight.memory import TRAINED, ModelSize, Need, maker_need, trainer_need
from rlhf_runtime.preflight.skeleton import model_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFindings:
    """What is right, and worth knowing: the least memory of each role, and `notes`, a sentence each."""

    needs: tuple[Need, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the longest prompt, and of a completion at most."""

    prompt: int
    completion: int


def check_models(config: RunConfig, roles: Roles, tokenizer: Any, lengths: Lengths) -> ModelFindings:
    """What needs the folders' content; `tokenizer` is the actor's. Raises RunFailure for the first that fails."""
    found, folders = roles.models, roles.folders
    notes = [*_end_notes(folders["actor"], tokenizer), *_adapter_notes(found, folders)]
    for role, each in found.items():
        if each.model.uri == config.models.actor.uri:
            check_context(each, folders[role], lengths)
        else:
            notes += _check_beside(each, folders[role], tokenizer, lengths)
    sizes = _sizes(found, folders)
    notes += [f"{found[role].field}: built by its factory: its memory is not counted" for role in found.keys() - sizes]
    _check_division(config, found, folders)
    return ModelFindings(needs=_needs(config, found, sizes), notes=tuple(notes))


def role_needs(config: RunConfig, roles: Roles) -> tuple[Need, ...]:
    """The least memory of a maker and of a trainer, as far as `roles` have it. Raises RunFailure."""
    return _needs(config, roles.models, _sizes(roles.models, roles.folders))


def _needs(config: RunConfig, found: Mapping[Role, RoleModel], sizes: Mapping[Role, ModelSize]) -> tuple[Need, ...]:
    needs = (maker_need(config, found, sizes), trainer_need(config, sizes))
    return tuple(need for need in needs if need is not None)


def check_context(found: RoleModel, folder: ModelFolder, lengths: Lengths) -> None:
    """A model must have a position for every token of the longest prompt and completion."""
    total = lengths.prompt + lengths.completion
    if folder.context is not None and total > folder.context:
        model = "the model" if found.role == "actor" else f"the {found.role} model"
        raise RunFailure(
            Reason.PROMPTS_INVALID,
            f"the longest prompt has {lengths.prompt} tokens and rollout.maxNewTokens is {lengths.completion}: "
            f"together {total}, but {model} in {folder.path} ({found.field}) has {folder.context} positions"
            f"{folder.limited}; lower prompts.maxPromptTokens or rollout.maxNewTokens",
            permanent=True,
        )


def _check_division(config: RunConfig, found: Mapping[Role, RoleModel], folders: Mapping[Role, ModelFolder]) -> None:
    """Whether tensor-parallel makers can divide the policy, and tensor-parallel trainers the trained models.

    Raises RunFailure ModelInvalid (permanent).
    """
    divided: tuple[tuple[str, int, tuple[Role, ...]], ...] = (
        ("makers.tensorParallel", config.makers.tensor_parallel, ("actor",)),
        ("trainers.tensorParallel", config.trainers.tensor_parallel, TRAINED),
    )
    for by, ranks, roles in divided:
        if ranks > 1:
            for role in (role for role in roles if role in found):
                description = json.loads((folders[role].path / "config.json").read_bytes())
                check_family(description, ranks, found[role].field, by)


def _adapter_notes(found: Mapping[Role, RoleModel], folders: Mapping[Role, ModelFolder]) -> list[str]:
    """Which models have an adapter beside their weights, each field of the spec once."""
    paths = {found[role].field: folder.path for role, folder in folders.items() if found[role].model.factory is None}
    return [
        f"{field}: {ADAPTER_CONFIG} in {path} is ignored: what its weights' files hold is the model; an adapter that "
        "it still needs must be merged into them"
        for field, path in paths.items()
        if (path / ADAPTER_CONFIG).is_file()
    ]


def _sizes(found: Mapping[Role, RoleModel], folders: Mapping[Role, ModelFolder]) -> dict[Role, ModelSize]:
    sizes = {role: model_size(each, folders[role]) for role, each in found.items()}
    return {role: size for role, size in sizes.items() if size is not None}


def _check_beside(found: RoleModel, folder: ModelFolder, tokenizer: Any, lengths: Lengths) -> list[str]:
    """Notes of a model with a folder of its own."""
    others = _own_tokens(found, folder, tokenizer)
    if found.role == "reward" and others is not None:
        # It gets the text, whose length in its own tokens is known when it is there: see models/reward_scorer.py.
        return [f"{found.field}: samples are read anew with the reward model's own tokenizer: {others}"]
    check_context(found, folder, lengths)
    return _check_ids(found, folder, tokenizer, others)


def _own_tokens(found: RoleModel, folder: ModelFolder, tokenizer: Any) -> str | None:
    """How the role's tokenizer differs from the actor's; None where it doesn't, or is not there."""
    if not has_tokenizer(folder.path):
        return None
    return difference(tokenizer, read_tokenizer(found.model.uri, folder, found.field))


def _check_ids(found: RoleModel, folder: ModelFolder, tokenizer: Any, others: str | None) -> list[str]:
    """Notes; RunFailure ModelInvalid if the role's model means something else by the actor's token ids.

    `others` says how its own tokens differ.
    """
    if folder.vocabulary is not None and folder.vocabulary < len(tokenizer):
        raise invalid(
            f"{found.field}.uri: the {found.role} model in {folder.path} reads the actor's token ids, which go up to "
            f"{len(tokenizer) - 1}, but its embedding has {folder.vocabulary} rows (vocab_size in config.json)"
        )
    if not has_tokenizer(folder.path):
        return [
            f"{found.field}: {folder.path} has no tokenizer: the {found.role} model is taken to have the actor's tokens"
        ]
    if others is not None:
        from_default = found.field != f"models.{found.role}"
        hint = f"; set models.{found.role}, which is read from {found.field} by default" if from_default else ""
        raise invalid(
            f"{found.field}.uri: the {found.role} model in {folder.path} reads the actor's token ids, but has another "
            f"tokenizer: {others}{hint}"
        )
    return []


def _end_notes(folder: ModelFolder, tokenizer: Any) -> list[str]:
    """What may surprise of the actor's end and pad tokens."""
    end = tokenizer.eos_token_id
    notes = []
    if tokenizer.pad_token_id is None:
        notes.append(f"models.actor: the tokenizer has no pad token: batches are filled with the end token, id {end}")
    ends, file = model_end_ids(folder.path)
    others = [number for number in ends if number != end]
    if others:
        said = ", ".join(f"{number} ({tokenizer.convert_ids_to_tokens(number)!r})" for number in others)
        notes.append(
            f"models.actor: {file} also ends a text at token {said}; completions end there too, not only at {end} "
            f"({tokenizer.eos_token!r})"
        )
    return notes
