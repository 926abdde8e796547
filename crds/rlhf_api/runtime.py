"""``spec.runtime``: image, environment and code of the pods."""

from typing import Annotated

from pydantic import ConfigDict, Field

from rlhf_api.schema import ApiModel, EnvName, ObjectName, cel


class LocalObjectReference(ApiModel):
    """The name of an object in the job's namespace."""

    name: ObjectName
    """Name of the object. Required. 1 to 253 characters."""


class KeySelector(ApiModel):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: ObjectName
    """Name of the object. Required. 1 to 253 characters."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key in the object's data. Required. 1 to 253 characters."""


class EnvVarSource(ApiModel):
    """Where a variable's value comes from: exactly one of `secretKeyRef` and `configMapKeyRef`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.secretKeyRef) != has(self.configMapKeyRef)",
                "exactly one of secretKeyRef and configMapKeyRef must be set",
            )
        )
    )

    secret_key_ref: KeySelector | None = None
    """A key of a Secret. Default none."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap. Default none."""


class EnvVar(ApiModel):
    """An environment variable of every pod of the job: exactly one of `value` and `valueFrom`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.value) != has(self.valueFrom)", "exactly one of value and valueFrom must be set")
        )
    )

    name: EnvName
    """Name of the variable. Required. 1 to 253 characters."""
    value: Annotated[str, Field(max_length=32_768)] | None = None
    """Value of the variable. Default none, at most 32,768 characters."""
    value_from: EnvVarSource | None = None
    """Source of the variable's value. Default none."""


class EnvFromSource(ApiModel):
    """All keys of a Secret or ConfigMap as variables: exactly one of `secretRef` and `configMapRef`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.secretRef) != has(self.configMapRef)",
                "exactly one of secretRef and configMapRef must be set",
            )
        )
    )

    secret_ref: LocalObjectReference | None = None
    """A Secret whose keys become variables. Default none."""
    config_map_ref: LocalObjectReference | None = None
    """A ConfigMap whose keys become variables. Default none."""


class Code(ApiModel):
    """Python code of your own, added to the PYTHONPATH of every pod: exactly one of `configMap` and `path`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.configMap) != has(self.path)", "exactly one of configMap and path must be set")
        )
    )

    config_map: LocalObjectReference | None = None
    """A ConfigMap whose keys are file names, for example `rewards.py`. The operator copies it when the job starts and
    records its hash in status.codeHash. Default none."""
    path: Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^/[^:\x00-\x1f]+$")] | None = None
    """An absolute path, without a colon, of a folder in the image or on a mounted volume. Default none, 2 to 1024
    characters."""


_RAY_WITH_HTTP_PROBES = (
    "self.matches('^(2[.](5[3-9]|[6-9][0-9]|[1-9][0-9][0-9])|[3-9]|[1-9][0-9]+)[.]')",
    "must be 2.53.0 or later: earlier versions lack the HTTP health checks that KubeRay uses",
)


class Runtime(ApiModel):
    """Image, environment and code of the job's pods."""

    image: Annotated[str, Field(min_length=1, max_length=1024)] = "rlhfjob/runtime:0.1.0"
    """Container image of the head, the makers and the trainers. Default rlhfjob/runtime:0.1.0, 1 to 1024 characters."""
    ray_version: Annotated[
        str,
        Field(max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$", json_schema_extra=cel(_RAY_WITH_HTTP_PROBES)),
    ] = "2.60.0"
    """Version of Ray in the image. Default 2.60.0, range 2.53.0 or later."""
    image_pull_secrets: Annotated[list[LocalObjectReference], Field(max_length=16)] = []
    """Secrets with the credentials for pulling the image. Default none, at most 16 items."""
    env: Annotated[list[EnvVar], Field(max_length=128)] = []
    """Environment variables of every pod. Default none, at most 128 items."""
    env_from: Annotated[list[EnvFromSource], Field(max_length=32)] = []
    """Secrets and ConfigMaps whose keys become environment variables of every pod. Default none, at most 32 items."""
    code: Code | None = None
    """Python code in addition to that in the image, for example reward functions. Default none."""
