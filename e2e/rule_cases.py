"""Jobs for rules across fields, for names, and for the object around the spec: written by hand, allowed and not."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from valid_jobs import ABSENT, BASE, Json, Path, changed, merged

_SECRET_KEY = {"secretKeyRef": {"name": "a", "key": "b"}}


@dataclass(frozen=True)
class Generated:
    """One object to create, and what it is for."""

    name: str
    """A sentence: what was done to a valid job."""
    document: Json
    allowed: bool | None
    """Whether it is meant to be valid; None for a mixture, where only the two verdicts count."""
    place: Path = ()
    """Where it differs from the valid job."""


def rule_cases() -> Iterator[Generated]:
    """Each rule across fields, on its edge and over it."""
    pair: dict[str, tuple[Path, Any, Any]] = {
        "prompts": (("spec", "prompts"), {"uri": "/a"}, {"reasoningGym": {"task": "chain_sum", "size": 1}}),
        "evaluation": (("spec", "evaluation"), {"uri": "/a"}, {"reasoningGym": {"task": "chain_sum", "size": 1}}),
        "storage": (
            ("spec", "checkpoint", "storage"),
            {"path": "/a"},
            {"persistentVolumeClaim": {"claimName": "a"}},
        ),
        "env": (
            ("spec", "runtime", "env", 0),
            {"value": "a"},
            {"valueFrom": _SECRET_KEY},
        ),
        "valueFrom": (
            ("spec", "runtime", "env", 1, "valueFrom"),
            _SECRET_KEY,
            {"configMapKeyRef": {"name": "a", "key": "b"}},
        ),
        "envFrom": (("spec", "runtime", "envFrom", 0), {"secretRef": {"name": "a"}}, {"configMapRef": {"name": "a"}}),
        "code": (("spec", "runtime", "code"), {"path": "/a"}, {"configMap": {"name": "a"}}),
    }
    for name, (place, one, other) in pair.items():
        common = {"name": "A"} if name == "env" else {}
        for text, value, allowed in (
            ("first alternative", one, True),
            ("second alternative", other, True),
            ("both alternatives", one | other, False),
            ("no alternative", {}, False),
            ("one alternative and the other null", one | dict.fromkeys(other), True),
        ):
            yield Generated(f"{name}: {text}", changed(BASE, place, common | value), allowed, place)
    for prompts, trainers, minibatches, allowed in (
        (12, 2, 3, True),
        (12, 3, 4, True),
        (12, 5, 1, False),
        (12, 3, 3, False),
        (1, 1, 2, False),
    ):
        change = {
            "rollout": {"promptsPerEpisode": prompts},
            "trainers": {"replicas": trainers, "perPod": 1},
            "algorithm": {"minibatches": minibatches},
        }
        name = f"{prompts} prompts over {trainers} trainers and {minibatches} minibatches"
        yield Generated(name, merged(BASE, {"spec": change}), allowed, ("spec", "rollout", "promptsPerEpisode"))
    for capacity, allowed in ((32, True), (31, False)):
        place = ("spec", "buffer", "capacity")
        yield Generated(f"a buffer of {capacity} for 32 samples", changed(BASE, place, capacity), allowed, place)
    for batch, allowed in ((4, True), (3, False)):
        place = ("spec", "makers", "maxBatchSamples")
        yield Generated(f"a batch of {batch} for groups of 4", changed(BASE, place, batch), allowed, place)
    yield from _maker_cases()
    yield from _trainer_cases()
    yield from _algorithm_cases()
    yield from _model_cases()
    yield from _reward_cases()
    for version, allowed in (
        ("2.52.9", False),
        ("2.53.0", True),
        ("2.100.1", True),
        ("3.0.0", True),
        ("10.1.0", True),
        ("1.99.0", False),
        ("2.6.0", False),
    ):
        place = ("spec", "runtime", "rayVersion")
        yield Generated(f"Ray {version}", changed(BASE, place, version), allowed, place)
    for uri, allowed in (
        ("/a", True),
        ("/", False),
        ("a/b", False),
        ("package://a.b/c", True),
        ("package://a", False),
        ("hf://a/b", True),
        ("hf://datasets/a/b@v1/c.jsonl", True),
        ("hf://a", False),
        ("s3://bucket/a", True),
        ("s3://bucket/", False),
        ("s3:///a", False),
        ("http://example.com:8000/a", True),
        ("https://example.com/a", True),
        ("https://example.com", False),
        ("https://user:pw@example.com/a", False),
        ("gs://bucket/a", True),
        ("abfs://container/a", True),
        ("ftp://example.com/a", False),
        ("file:///a", False),
        ("/a\nb", True),
    ):
        place = ("spec", "models", "actor", "uri")
        yield Generated(f"model {uri!r}", changed(BASE, place, uri), allowed, place)


def _algorithm_cases() -> Iterator[Generated]:
    """What belongs to one algorithm, or one choice, only."""
    place: Path = ("spec", "algorithm")
    plain = changed(BASE, ("spec", "models"), {"actor": {"uri": "/models/policy"}})
    optimizer = {"learningRate": 1e-6}
    loss, reward = ({"coefficient": 0.1, "appliesTo": where} for where in ("Loss", "Reward"))
    correction = {"offPolicy": {"correction": "Decoupled"}}
    for text, algorithm, allowed in (
        ("PPO", {"type": "PPO"}, True),
        ("PPO with gae and critic", {"type": "PPO", "gae": {}, "critic": {}}, True),
        ("PPO with group", {"type": "PPO", "group": {}}, False),
        ("GRPO", {"type": "GRPO"}, True),
        ("GRPO with group", {"type": "GRPO", "group": {}}, True),
        ("GRPO with gae", {"type": "GRPO", "gae": {}}, False),
        ("GRPO with critic", {"type": "GRPO", "critic": {}}, False),
        ("K1 in the reward", {"type": "GRPO", "kl": reward | {"estimator": "K1"}}, True),
        ("K1 in the loss", {"type": "GRPO", "kl": loss | {"estimator": "K1"}}, False),
        ("K3 in the loss", {"type": "GRPO", "kl": loss | {"estimator": "K3"}}, True),
        ("no estimator in the loss", {"type": "GRPO", "kl": loss}, True),
        ("a correction against recomputed log-probs", correction | {"oldLogProbs": "Recomputed"}, True),
        ("a correction against interpolated log-probs", correction | {"oldLogProbs": "Interpolated"}, True),
        ("a correction against sampled log-probs", correction | {"oldLogProbs": "Sampled"}, False),
        ("a correction against log-probs by default", correction, False),
    ):
        value = {"type": "GRPO", "optimizer": optimizer} | algorithm
        yield Generated(f"algorithm: {text}", changed(plain, place, value), allowed, place)
    for schedule, fraction, allowed in (
        ("Linear", {}, True),
        ("Cosine", {"finalLearningRateFraction": 0}, True),
        ("Linear", {"finalLearningRateFraction": 0.5}, True),
        ("Constant", {"finalLearningRateFraction": 0.5}, False),
    ):
        scheduled: Json = {"learningRate": 1e-6, "schedule": schedule} | fraction
        grpo = {"type": "GRPO", "optimizer": scheduled}
        yield Generated(f"schedule: {scheduled}", changed(plain, place, grpo), allowed, place)
        ppo = {"type": "PPO", "optimizer": optimizer, "critic": {"optimizer": scheduled}}
        yield Generated(f"schedule of the critic: {scheduled}", changed(plain, place, ppo), allowed, place)
    for kind, samples, allowed in (("PPO", 1, True), ("GRPO", 2, True), ("GRPO", 1, False)):
        algorithm = {"type": kind, "optimizer": optimizer}
        document = merged(changed(plain, place, algorithm), {"spec": {"rollout": {"samplesPerPrompt": samples}}})
        yield Generated(f"{kind} with {samples} samples of a prompt", document, allowed, ("spec", "rollout"))


def _model_cases() -> Iterator[Generated]:
    """A model that nothing uses, and one that is missing."""
    model = {"uri": "/models/other"}
    grpo: Json = {"type": "GRPO", "optimizer": {"learningRate": 1e-6}}
    for text, algorithm, models, allowed in (
        ("a critic with PPO", {"type": "PPO"}, {"critic": model}, True),
        ("a critic with GRPO", {}, {"critic": model}, False),
        ("no critic with PPO", {"type": "PPO"}, {}, True),
        ("a reference with KL", {"kl": {"coefficient": 1, "appliesTo": "Loss"}}, {"reference": model}, True),
        ("a reference without KL", {}, {"reference": model}, False),
        ("KL without a reference", {"kl": {"coefficient": 1, "appliesTo": "Loss"}}, {}, True),
        ("a teacher with distillation", {"distillation": {"weight": 1}}, {"teacher": model}, True),
        ("a teacher without distillation", {}, {"teacher": model}, False),
        ("distillation without a teacher", {"distillation": {"weight": 1}}, {}, False),
    ):
        changes = {"algorithm": grpo | algorithm, "models": {"actor": {"uri": "/models/policy"}} | models}
        document = BASE | {"spec": BASE["spec"] | changes}
        yield Generated(f"models: {text}", document, allowed, ("spec", "models"))


def _reward_cases() -> Iterator[Generated]:
    """What a reward is, names that differ, and the model that a reward needs."""
    function, model, http = {"function": "a:f"}, {"model": "reward"}, {"http": {"url": "http://judge:8080/score"}}
    for text, rewards, allowed in (
        ("a function, an endpoint and a model", [function, http, model], True),
        ("a function and an endpoint in one", [function | http], False),
        ("a function and a model in one", [function | model], False),
        ("none of the three", [{"weight": 1}], False),
        ("a name only", [{"name": "a"}], False),
        ("a model with a timeout", [model | {"timeoutSeconds": 5}], False),
        ("an endpoint with a timeout", [http | {"timeoutSeconds": 5}], True),
        ("16 of different names", [function | {"name": f"part-{number}"} for number in range(16)], True),
        ("a function twice", [function, function], False),
        ("a function twice, one named", [function, function | {"name": "strict"}], True),
        ("an endpoint twice", [http, http], False),
        ("a model twice", [model, model], False),
        ("one named twice", [function | {"name": "a"}, http | {"name": "a"}], False),
        ("one named like another's default", [function, http | {"name": "a:f"}], False),
    ):
        for where, spec in (("rewards", rewards), ("evaluation", {"uri": "/held-out", "rewards": rewards})):
            models = {"actor": {"uri": "/a"}} | ({"reward": {"uri": "/r"}} if "model" in str(rewards) else {})
            yield Generated(f"{where}: {text}", _with({"models": models, where: spec}), allowed, ("spec", where))
    actor = {"actor": {"uri": "/a"}}
    for text, rewards, scored, models, allowed in (
        ("a reward model that rewards", [model], None, actor | {"reward": {"uri": "/r"}}, True),
        ("a reward model that evaluates", [function], [model], actor | {"reward": {"uri": "/r"}}, True),
        ("a reward model that nothing uses", [function], [function], actor | {"reward": {"uri": "/r"}}, False),
        (
            "a reward model that nothing uses, and no evaluation",
            [function],
            (),
            actor | {"reward": {"uri": "/r"}},
            False,
        ),
        ("no reward model for rewards", [model], None, actor, False),
        ("no reward model for an evaluation", [function], [model], actor, False),
    ):
        evaluation = None if scored == () else {"uri": "/held-out", "rewards": scored}
        document = _with({"models": models, "rewards": rewards, "evaluation": evaluation})
        yield Generated(f"models: {text}", document, allowed, ("spec", "models"))
    for url, allowed in (
        ("http://a.b", True),
        ("https://10.0.0.1:65535/a/b?c=d&e=%20", True),
        ("http://[::1]:8080/", True),
        ("http://judge_1/", True),
        ("ftp://a.b/c", False),
        ("http:///a/b", False),
        ("http://user:secret@a/b", False),
        ("http://a:port/b", False),
        ("http://a/b c", False),
        ("http://a/b#c", False),
        ("http://\u00e4.de/b", False),
        ("http://a/b\n", False),
    ):
        rewards = [{"http": {"url": url}}]
        yield Generated(f"endpoint {url!r}", _with({"rewards": rewards}), allowed, ("spec", "rewards"))


def _with(changes: Json) -> Json:
    """The first base with parts of its spec replaced, without a KL term and a teacher."""
    algorithm = {"type": "GRPO", "optimizer": {"learningRate": 1e-6}}
    spec = BASE["spec"] | {"models": {"actor": {"uri": "/a"}}} | changes | {"algorithm": algorithm}
    return BASE | {"spec": spec}


def metadata_cases() -> Iterator[Generated]:
    """Names and other metadata."""
    for name, allowed in (
        ("a", True),
        ("a" * 47, True),
        ("a" * 48, False),
        ("a" * 254, False),
        ("a-1", True),
        ("1a", False),
        ("a.b", False),
        ("A", False),
        ("a-", False),
        ("a_b", False),
        ("é", False),
        ("", False),
        (3, False),
        (None, False),
        (ABSENT, False),
    ):
        place = ("metadata", "name")
        shown = "absent" if name is ABSENT else repr(name)
        yield Generated(f"name {shown}", changed(BASE, place, name), allowed, place)
    for entries, allowed in (
        ({"a": "b", "example.com/A_b.c": ""}, True),
        ({"a": None}, True),
        ({"a": 3}, False),
        ({"a": True}, False),
        ({"a": "-b"}, False),
        ({"a": "b" * 64}, False),
        ({"a b": "c"}, False),
        ({"a/b/c": "d"}, False),
        ({"Example.com/a": "b"}, False),
        ({"": "b"}, False),
        ({"k" * 64: "b"}, False),
        (["a"], False),
    ):
        place = ("metadata", "labels")
        yield Generated(f"labels {entries!r}", changed(BASE, place, entries), allowed, place)
    for entries, allowed in (
        ({"Example.com/A": "b\n"}, True),
        ({"a": 3}, False),
        ({"a b": "c"}, False),
        ({"a": "x" * 262_144}, False),
    ):
        place = ("metadata", "annotations")
        text = repr(entries)[:40]
        yield Generated(f"annotations {text}", changed(BASE, place, entries), allowed, place)
    place = ("metadata", "nmae")
    yield Generated("unknown metadata", changed(BASE, place, "a"), False, place)


def whole_cases() -> Iterator[Generated]:
    """The object around the spec."""
    for place, value, allowed in (
        (("spec",), ABSENT, False),
        (("spec",), None, False),
        (("spec",), {}, False),
        (("spec",), [], False),
        (("sepc",), {}, False),
        (("status",), {"phase": "Running"}, True),
        (("status",), {"phase": 3, "episodes": "x"}, True),
        (("status",), {"unknownField": 3}, False),
    ):
        text = "absent" if value is ABSENT else repr(value)
        yield Generated(f"{place[0]} {text}", changed(BASE, place, value), allowed, place)


def _maker_cases() -> Iterator[Generated]:
    """A GPU for each of two ranks, as a number or a quantity, of whatever make."""
    for limits, allowed in (
        ({"cpu": 1, "memory": "1Gi"}, True),
        ({"nvidia.com/gpu": 2}, True),
        ({"nvidia.com/gpu": "2", "cpu": 1}, True),
        ({"amd.com/gpu": 2}, True),
        ({"nvidia.com/gpu": 1}, False),
        ({"nvidia.com/gpu": "4"}, False),
        ({"amd.com/gpu": 1, "cpu": 2}, False),
    ):
        place: Path = ("spec", "makers", "resources", "limits")
        yield Generated(f"two tensor-parallel ranks with {limits}", changed(BASE, place, limits), allowed, place)
    place = ("spec", "makers", "tensorParallel")
    plain = changed(BASE, ("spec", "makers", "resources", "limits"), {"nvidia.com/gpu": 1})
    yield Generated("one rank with a GPU", changed(plain, place, ABSENT), True, place)


def _trainer_cases() -> Iterator[Generated]:
    trainers = ("spec", "trainers")
    plain = {"replicas": 4}
    for name, change, field, allowed in (
        ("the default bound of a micro-batch", {}, "maxTokensPerMicroBatch", True),
        ("a micro-batch bounded by rows", {"microBatchSize": 4}, "maxTokensPerMicroBatch", True),
        ("a micro-batch that holds one sample", {"maxTokensPerMicroBatch": 80}, "maxTokensPerMicroBatch", True),
        ("a micro-batch short of a sample", {"maxTokensPerMicroBatch": 79}, "maxTokensPerMicroBatch", False),
        (
            "a micro-batch bounded twice",
            {"maxTokensPerMicroBatch": 80, "microBatchSize": 4},
            "maxTokensPerMicroBatch",
            False,
        ),
        ("two pods of two ranks", {"perPod": 2}, "perPod", True),
        ("a pod that lacks ranks", {"perPod": 3}, "perPod", False),
        ("two ranks with a peer each", {"tensorParallel": 2}, "tensorParallel", True),
        ("a rank that lacks peers", {"tensorParallel": 3}, "tensorParallel", False),
        ("more peers than ranks", {"tensorParallel": 8}, "tensorParallel", False),
        ("ZeRO2 offloaded", {"strategy": "ZeRO2", "offload": "All"}, "offload", True),
        ("DDP offloaded", {"strategy": "DDP", "offload": "All"}, "offload", False),
        ("a strategy of one's own", {"strategyFactory": "a:b"}, "strategyFactory", True),
        ("two strategies", {"strategyFactory": "a:b", "strategy": "ZeRO2"}, "strategyFactory", False),
        ("two who recompute", {"strategyFactory": "a:b", "gradientCheckpointing": True}, "strategyFactory", False),
        ("two who divide", {"strategyFactory": "a:b", "tensorParallel": 2}, "strategyFactory", False),
    ):
        actor = changed(BASE, ("spec", "models", "actor", "lora"), ABSENT)
        yield Generated(name, changed(actor, trainers, plain | change), allowed, (*trainers, field))
    # Peers see the same samples: four ranks in pairs take two groups at least, and so four prompts in two minibatches.
    for prompts, allowed in ((4, True), (6, False)):
        spec: Json = {"trainers": plain | {"tensorParallel": 2, "perPod": 1}, "rollout": {"promptsPerEpisode": prompts}}
        document = merged(changed(BASE, ("spec", "models", "actor", "lora"), ABSENT), {"spec": spec})
        yield Generated(
            f"{prompts} prompts over two pairs and 2 minibatches",
            document,
            allowed,
            ("spec", "rollout", "promptsPerEpisode"),
        )
    adapted = merged(BASE, {"spec": {"trainers": {"tensorParallel": 2}}})
    place = (*trainers, "tensorParallel")
    yield Generated("adapters over tensor-parallel peers", adapted, False, place)
    whole = changed(adapted, ("spec", "models", "actor", "lora"), ABSENT)
    yield Generated("no adapters over tensor-parallel peers", whole, True, place)
