"""The critic: a sequence-classification model whose head is applied at every position."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rlhf_api.models import Lora, Model
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from rlhf_runtime.models.factory import from_factory
from rlhf_runtime.models.lora import attach_adapters, has_adapters, load_adapter, save_adapter
from rlhf_runtime.models.padding import TESTED, check_padding
from rlhf_runtime.models.policy import save_plain
from rlhf_runtime.models.policy_weights import model_weights, published_weights
from rlhf_runtime.models.pretrained import invalid, load_pretrained, on_device
from rlhf_runtime.models.stored_weights import LANGUAGE_HEADS

HEAD = "score"
#: What a critic may begin without.
FRESH = (f"{HEAD}.weight",)
_INNER = "model."


class Critic(nn.Module):
    """Values of every position of a sequence-classification model with one label."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        """Values [B, L] fp32 from token ids, mask and positions, all [B, L] int64; padding's values mean nothing."""
        body = getattr(self.model, self.model.base_model_prefix)
        hidden = body(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        values: Tensor = self.model.score(hidden).squeeze(-1).float()
        return values


def load_scores(folder: Path, dtype: str, field: str, fresh: Collection[str] = ()) -> nn.Module:
    """A sequence-classification model with one label, as `pretrained.load_pretrained` loads it, on the CPU.

    Raises RunFailure ModelInvalid, also for a family that has no plain head upon a decoder.
    """
    inner: Any = load_pretrained(
        AutoModelForSequenceClassification,
        folder,
        dtype,
        field,
        fresh=fresh,
        spare=LANGUAGE_HEADS,
        num_labels=1,
    )
    family = inner.config.model_type
    if not isinstance(getattr(inner, HEAD, None), nn.Linear):
        raise invalid(
            f"{field}.uri: {folder}: a {type(inner).__name__} has no linear layer {HEAD!r} upon its hidden states, "
            f"expected a decoder such as {', '.join(TESTED)}"
        )
    if family not in TESTED:
        body = getattr(inner, inner.base_model_prefix)
        check_padding(inner, lambda inputs: body(**inputs, use_cache=False).last_hidden_state, f"{field}.uri", family)
    loaded: nn.Module = inner
    return loaded


def load_critic(
    model: Model,
    folder: Path,
    dtype: str,
    *,
    role: str = "critic",
    lora: Lora | None = None,
    resume: Path | None = None,
) -> nn.Module:
    """The critic in `folder`, parameters in `dtype`; values are exactly 0 at first if the folder has no head.

    `folder` is the local one of `model.uri`; `resume` is one that `save_critic` wrote for a resume, whose weights then
    take the place of the folder's. `role` is the field of `spec.models` that `model` is. On a GPU where there is one.
    Raises RunFailure ModelInvalid.
    """
    field = f"models.{role}"
    # A resume with adapters has these and the head alone.
    whole = resume if lora is None else None
    if model.factory is not None:
        return on_device(from_factory(model.factory, folder, dtype, "critic", whole))
    # What is resumed has had a head, whatever it began with.
    inner = load_scores(whole or folder, dtype, field, fresh=() if whole else FRESH)
    if lora is not None:
        attach_adapters(inner, lora, field, head=HEAD)
        if resume is not None:
            load_adapter(inner, resume, field)
    return on_device(Critic(inner))


def save_critic(
    module: Any,
    tokenizer: Any,
    folder: Path,
    *,
    weights: Mapping[str, Tensor] | None = None,
    adapter_only: bool = False,
) -> None:
    """Write a critic as plain transformers' AutoModelForSequenceClassification loads it; see `save_policy`."""
    whole = model_weights(module) if weights is None else weights
    tokenizer.save_pretrained(str(folder))
    if not isinstance(module, Critic):
        save_plain(module, whole, folder)
        return
    inner: Any = module.model
    own = {name.removeprefix(_INNER): tensor for name, tensor in whole.items()}
    if has_adapters(inner):
        save_adapter(inner, own, str(inner.config.name_or_path), folder if adapter_only else folder / "adapter")
        if adapter_only:
            return
    # Plain transformers needs it to find a row's last token.
    inner.config.pad_token_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    save_plain(inner, published_weights(inner, own), folder)
