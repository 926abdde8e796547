"""The RunConfig of a spec, for checks that need no run."""

from typing import Any

from rlhf_api.job import RLHFJob
from rlhf_api.run import RunConfig, run_config


def config_of(spec: dict[str, Any]) -> RunConfig:
    metadata = {"name": "test", "namespace": "default", "uid": "00000000-1111"}
    job = RLHFJob.model_validate(
        {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": metadata, "spec": spec}
    )
    return run_config(job, "/storage", attempt=1, incarnation=1)
