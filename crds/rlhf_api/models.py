"""``spec.models``: where models are read from, and what is made of them."""

from typing import Annotated, Literal

from pydantic import Field

from rlhf_api.schema import ApiModel, FunctionPath, Uri


class Model(ApiModel):
    """Where a model and its tokenizer are read from."""

    uri: Uri
    """A folder as `save_pretrained` writes it: an absolute path in the image or on a mounted volume,
    `package://PACKAGE/FOLDER` for a folder inside an installed Python package, `s3://BUCKET/KEY`,
    `hf://ORG/NAME[@REVISION]` or `http(s)://HOST/PATH`. Required. 1 to 2048 characters."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that the makers compute in, float32 or bfloat16; trainers keep fp32 masters either way. Default
    float32."""
    factory: FunctionPath | None = None
    """`package.module:function`, importable in the image or from `runtime.code`; called as `f(path, dtype, role)`, it
    returns the role's torch module. Default none: transformers loads the folder. 3 to 512 characters."""


class Lora(ApiModel):
    """Low-rank adapters by peft: only they are trained, the model's own weights stay as they are."""

    rank: Annotated[int, Field(ge=1, le=1024)]
    """Rank of every adapter. Required. Range 1 to 1024."""
    alpha: Annotated[float, Field(gt=0, le=65_536)]
    """An adapter is scaled by alpha / rank. Required. Range above 0 to 65,536."""
    targets: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]] | None, Field(min_length=1, max_length=64)
    ] = None
    """Names of the linear layers that get an adapter, as the end of their path in the model (`q_proj`,
    `layers.0.mlp.up_proj`). Default none: all linear layers but the head. 1 to 64 names."""


class TrainedModel(Model):
    """A model that is trained."""

    lora: Lora | None = None
    """Train adapters only. Default none: all weights are trained."""


class Models(ApiModel):
    """The models of the job."""

    actor: TrainedModel
    """The policy that is trained. Required."""
    reference: Model | None = None
    """The policy that the KL divergence is measured to. Default none: the actor's starting weights."""
    critic: TrainedModel | None = None
    """The value model, a sequence-classification model of one label; one without a head gets a head of zeros.
    Default none: the reward model's body and head if there is one, else the actor's body with a head of zeros."""
    reward: Model | None = None
    """A sequence-classification model of one label that scores completions. Default none."""
    teacher: Model | None = None
    """The policy that is distilled from. Default none."""
