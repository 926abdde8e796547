"""``spec.checkpoint``: what is kept, and where."""

from typing import Annotated

from pydantic import ConfigDict, Field

from rlhf_api.schema import ApiModel, ObjectName, cel


class PersistentVolumeClaim(ApiModel):
    """A claim in the job's namespace, shared by all pods of the job (ReadWriteMany on several nodes)."""

    claim_name: ObjectName
    """Name of the claim. Required. 1 to 253 characters."""


class Storage(ApiModel):
    """Where checkpoints and the journal are kept: exactly one of `persistentVolumeClaim` and `path`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.persistentVolumeClaim) != has(self.path)",
                "exactly one of persistentVolumeClaim and path must be set",
            )
        )
    )

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A claim that the operator mounts into every pod of the job. Default none."""
    path: (
        Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+/?$")] | None
    ) = None
    """An absolute path that the roles' templates mount into every pod. Default none, 2 to 1024 characters."""


class Checkpoint(ApiModel):
    """Checkpoints: what a failed attempt resumes from, and the trained model."""

    storage: Storage
    """Where. Required."""
    every_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Save after every so many episodes, and after the last. Default 10, range 1 to 1,000,000."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Newest checkpoints kept, beside the best one and the final model. Default 2, range 1 to 1000."""
