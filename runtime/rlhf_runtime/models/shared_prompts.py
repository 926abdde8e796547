"""Reading a prompt that many rows share once: keys and values of it for every row, with their gradient.

A group's samples have one prompt. Its tokens say the same in every sample, so one row's keys and values serve all,
and what the samples' gradients ask of them adds up in the one row that is read.
"""

import inspect
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from transformers import DynamicCache, PreTrainedModel

from rlhf_runtime.experience.batch import Rows
from rlhf_runtime.models.blocks import recomputes_in_backward

#: The least part of a batch's tokens, padding counted, that must be saved to be worth a pass of its own. A GPU's
#: passes are short, and starting their kernels takes the host as long for few tokens as for many.
WORTH_ON_CPU = 1 / 8
WORTH_ON_GPU = 1 / 2


def worth_sharing(rows: Rows) -> bool:
    """Whether reading each distinct prompt once, but for its last token, saves enough."""
    if rows.distinct_prompts is None:
        return False
    saved = (len(rows.input_ids) - len(rows.distinct_prompts)) * (prompt_columns(rows) - 1)
    least = WORTH_ON_CPU if rows.input_ids.device.type == "cpu" else WORTH_ON_GPU
    return saved >= least * rows.input_ids.numel()


def prompt_columns(rows: Rows) -> int:
    """Columns of the longest prompt."""
    return rows.input_ids.shape[1] - rows.mask.shape[1]


def may_share_prompts(model: nn.Module) -> bool:
    """Whether the model can be called for the prompts first, and then for what follows.

    Not where its weights are divided, since each forward is a collective and ranks may have different batches; nor
    where blocks are recomputed, which would add to the keys and values once more.
    """
    whole = _whole(model)
    divided = isinstance(whole, FSDPModule)
    return isinstance(whole, PreTrainedModel) and not divided and not recomputes_in_backward(whole)


def read_prompts(model: nn.Module, rows: Rows, columns: int) -> dict[str, Any]:
    """Read the first `columns` of each distinct prompt of rows that share them.

    What comes back are arguments for a forward of all rows' later columns, whose attention mask covers all columns.
    """
    assert rows.distinct_prompts is not None
    assert rows.prompt_of_row is not None
    cache = DynamicCache()
    # Not through DDP: its own forward counts as the one that a backward follows.
    whole = _whole(model)
    named = cache_parameter(whole)
    whole(
        input_ids=rows.input_ids[rows.distinct_prompts, :columns],
        attention_mask=rows.attention_mask[rows.distinct_prompts, :columns],
        position_ids=rows.position_ids[rows.distinct_prompts, :columns],
        use_cache=True,
        logits_to_keep=1,
        **{named: cache},
    )
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(0, rows.prompt_of_row)
        layer.values = layer.values.index_select(0, rows.prompt_of_row)
    return {"use_cache": True, named: cache}


def cache_parameter(model: nn.Module) -> str:
    """What a transformers model calls its keys and values: other names before and after version 5.20."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _whole(model: nn.Module) -> nn.Module:
    """The model itself, where it is replicated."""
    return model.module if isinstance(model, DistributedDataParallel) else model
