"""``spec.models``: where models are read from and how they are loaded."""

from typing import Annotated, Literal

from pydantic import Field

from rlhf_api.schema import ApiModel, FunctionPath, Uri


class Model(ApiModel):
    """Where a model and its tokenizer are read from."""

    uri: Uri
    """A folder as `save_pretrained` writes it: an absolute path in the image or on a mounted volume,
    `package://PACKAGE/FOLDER` for a folder inside an installed Python package, `s3://BUCKET/KEY`,
    `gs://BUCKET/KEY`, `abfs://CONTAINER/PATH`, `hf://ORG/NAME[@REVISION]` or `http(s)://HOST/PATH`. Required. 1 to
    2048 characters."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that the makers compute in, float32 or bfloat16. Trainers keep fp32 master weights either way.
    Default float32."""
    factory: FunctionPath | None = None
    """A function of your own that loads the model, as `package.module:function`, importable in the image or from
    `runtime.code`. It is called as `f(path, dtype, role)` and returns the torch module. Default none, which means that
    transformers loads the folder; 3 to 512 characters."""


class Lora(ApiModel):
    """Low-rank adapters, made by peft. Only the adapters are trained; the weights of the model do not change."""

    rank: Annotated[int, Field(ge=1, le=1024)]
    """Rank of the adapters. Required. Range 1 to 1024."""
    alpha: Annotated[float, Field(gt=0, le=65_536)]
    """Scale of the adapters: the output of each is multiplied by alpha / rank. Required. Range above 0 to 65,536."""
    targets: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]] | None, Field(min_length=1, max_length=64)
    ] = None
    """Names of the linear layers that get an adapter. A name is the end of the layer's path in the model, for example
    `q_proj` or `layers.0.mlp.up_proj`. Default none, which means all linear layers except the output head; 1 to 64
    items of 1 to 256 characters."""


class TrainedModel(Model):
    """A model that is trained."""

    lora: Lora | None = None
    """Low-rank adapters to train instead of the weights. Default none: all weights are trained."""


class Models(ApiModel):
    """The models of the job."""

    actor: TrainedModel
    """The policy, which is trained. Required."""
    reference: Model | None = None
    """The reference policy that the KL is measured against. Only with algorithm.kl. Default none, which means the
    starting weights of the actor."""
    critic: TrainedModel | None = None
    """The critic, a sequence-classification model with one label; a model without a head gets a head of zeros. Only for
    PPO. Default none, which means a copy of models.reward where that is set, or else the body of the actor with a head
    of zeros."""
    reward: Model | None = None
    """A reward model: a sequence-classification model with one label. Required by rewards with `model: reward`. Default
    none."""
    teacher: Model | None = None
    """The policy that the actor is distilled from. Only with algorithm.distillation. Default none."""
