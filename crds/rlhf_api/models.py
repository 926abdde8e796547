"""``spec.models``: where models are read from, and what is made of them."""

from typing import Literal

from rlhf_api.schema import ApiModel, Uri


class Model(ApiModel):
    """Where a model and its tokenizer are read from."""

    uri: Uri
    """A folder as `save_pretrained` writes it: an absolute path in the image or on a mounted volume, or
    `package://PACKAGE/FOLDER` for a folder inside an installed Python package. Required. 1 to 2048 characters."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format that the makers compute in, float32 or bfloat16; trainers keep fp32 masters either way. Default
    float32."""


class Models(ApiModel):
    """The models of the job."""

    actor: Model
    """The policy that is trained. Required."""
