"""Prometheus metrics of the operator: a few, with bounded labels."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """All metrics, in a registry of their own so that tests and several operators in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queue_depth = Gauge("rlhf_operator_queue_depth", "Jobs waiting for a pass.", registry=self.registry)
        self.api_calls = Counter(
            "rlhf_operator_api_calls_total",
            "Calls to the Kubernetes API.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.status_writes = Counter(
            "rlhf_operator_status_writes_total", "Status writes, all jobs.", registry=self.registry
        )
        self.pass_seconds = Histogram(
            "rlhf_operator_pass_seconds",
            "Duration of one pass over one job.",
            registry=self.registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
        )
        self.pass_failures = Counter(
            "rlhf_operator_pass_failures_total", "Passes that ended in an error.", registry=self.registry
        )
        self.jobs = Gauge("rlhf_operator_jobs", "Jobs by phase.", ["phase"], registry=self.registry)
        self.leader = Gauge("rlhf_operator_leader", "1 while this process holds the lease.", registry=self.registry)
