"""``spec.checkpoint``: what is kept, and where."""

from typing import Annotated

from pydantic import ConfigDict, Field

from rlhf_api.schema import ApiModel, ObjectName, cel


class PersistentVolumeClaim(ApiModel):
    """A claim in the job's namespace that all pods of the job mount. On several nodes it must be ReadWriteMany."""

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
    """A claim, which the operator mounts into every pod of the job. Default none."""
    path: (
        Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+/?$")] | None
    ) = None
    """An absolute path at which the templates of all roles mount the same volume. Default none, 2 to 1024
    characters."""


class Checkpoint(ApiModel):
    """Where and how often the job saves its state. An attempt resumes from the newest checkpoint."""

    storage: Storage
    """Where checkpoints, the journal and the trained model are kept. Required."""
    every_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Number of episodes between checkpoints. The last episode is always saved. Default 10, range 1 to 1,000,000."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 2
    """Number of newest checkpoints to keep. The checkpoint with the best score and the final model are kept in
    addition. Default 2, range 1 to 1000."""
