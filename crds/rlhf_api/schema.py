"""How an API type is declared: one base class, and the few annotations that the CRD needs beside pydantic's.

Every type refuses unknown fields and never coerces ("3" is not 3), as the API server does. A null means
"absent", as it does for a non-nullable field of a structural schema.

What a user wrote is validated so (``model_validate``). What another part of the system wrote may come from a newer
version: it is read with ``read`` or ``read_json``, which leave fields out that this version does not know.
"""

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

#: A point in time, RFC 3339 in JSON.
Time = Annotated[datetime, Field(strict=False)]

PRESERVE_UNKNOWN = {"x-kubernetes-preserve-unknown-fields": True}

#: A name that Kubernetes accepts for an object (DNS-1123 subdomain).
ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]


class ApiModel(BaseModel):
    """Base of every type in this API: immutable, camelCase outside, no unknown fields, no coercion.

    A number is finite: JSON has no other, and what was written as null could not be read again.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @classmethod
    def read(cls, value: Any) -> Self:
        """What another version may have written, without the fields that this one does not know.

        Raises ValidationError for anything else that does not fit.
        """
        return cls.model_validate(value, extra="ignore")

    @classmethod
    def read_json(cls, text: str | bytes) -> Self:
        """The same of JSON."""
        return cls.model_validate_json(text, extra="ignore")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict with the API's own field names; absent optional fields stay absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def to_json(self, indent: int | None = None) -> str:
        """The same as JSON, on one line unless ``indent`` is given."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=indent)


def first_error(error: ValidationError) -> str:
    """What is wrong first, as ``spec.mode: Input should be 'FullyAsync'``."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def cel(*rules: tuple[str, str] | tuple[str, str, str]) -> dict[str, Any]:
    """Cross-field rules as ``(expression, message)``: put into the CRD, and evaluated by ``rlhfjob validate``.

    A third part is the path below ``self`` of the field that a message is about (``.buffer.capacity``).
    """
    keys = ("rule", "message", "fieldPath")
    return {"x-kubernetes-validations": [dict(zip(keys, rule, strict=False)) for rule in rules]}


Quantity = Annotated[
    int | Annotated[str, Field(pattern=r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$", max_length=64)],
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
URI_FORMS = (
    "an absolute path, package://PACKAGE/PATH, s3://BUCKET/KEY, gs://BUCKET/KEY, abfs://CONTAINER/PATH, "
    "hf://[datasets/]ORG/NAME[@REVISION][/PATH] or http(s)://HOST/PATH"
)
_PLACE = (
    "self.matches('^(/|package://[A-Za-z_][A-Za-z0-9_.]*/|(s3|gs|abfs)://[A-Za-z0-9][A-Za-z0-9._-]+/|https?://[^/@]+/"
    "|hf://[A-Za-z0-9_.-]+/).+')",
    f"must be {URI_FORMS}",
)
Uri = Annotated[str, Field(min_length=1, max_length=2048, json_schema_extra=cel(_PLACE))]
EnvName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
FunctionPath = Annotated[
    str, Field(min_length=3, max_length=512, pattern=rf"^{_IDENTIFIER}(\.{_IDENTIFIER})*:{_IDENTIFIER}$")
]
