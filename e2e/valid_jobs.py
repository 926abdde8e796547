"""Two valid RLHFJobs that set everything, and how to change one: where the generated ones start from."""

import copy
from typing import Any

Json = dict[str, Any]
Path = tuple[str | int, ...]

#: In place of a value: take the field away.
ABSENT = object()
_PARAMETER = {"min_terms": 2}

#: Every optional field is set in one of these two, every alternative in either.
BASE: Json = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "generated", "labels": {"example.com/team": "a"}, "annotations": {"note": "x y"}},
    "spec": {
        "mode": "FullyAsync",
        "maxStaleness": 1,
        "stalenessPolicy": "Wait",
        "episodes": 3,
        "algorithm": {
            "type": "GRPO",
            "clipLow": 0.2,
            "clipHigh": 0.28,
            "dualClip": 3,
            "ratioLevel": "Token",
            "lossAggregation": "Token",
            "oldLogProbs": "Recomputed",
            "offPolicy": {"correction": "TIS", "cap": 2},
            "kl": {"coefficient": 0.05, "appliesTo": "Loss", "estimator": "K3", "refreshEveryEpisodes": 10},
            "distillation": {"weight": 0.1, "estimator": "K2"},
            "entropyCoefficient": 0.01,
            "group": {"normalization": "Std", "baseline": "Mean"},
            "epochs": 1,
            "minibatches": 2,
            "optimizer": {
                "learningRate": 1e-6,
                "beta1": 0.9,
                "beta2": 0.95,
                "epsilon": 1e-8,
                "weightDecay": 0,
                "maxGradientNorm": 1,
                "warmupSteps": 0,
                "schedule": "Cosine",
                "finalLearningRateFraction": 0.1,
            },
        },
        "models": {
            "actor": {
                "uri": "/models/policy",
                "dtype": "float32",
                "factory": "models:make",
                "lora": {"rank": 8, "alpha": 16, "targets": ["q_proj", "layers.0.mlp.up_proj"]},
            },
            "reference": {"uri": "/models/reference", "dtype": "float32", "factory": "models:make"},
            "teacher": {"uri": "/models/teacher", "dtype": "bfloat16", "factory": "models:make"},
        },
        "rewards": [
            {"name": "exact", "function": "rewards:exact", "weight": 1, "timeoutSeconds": 60},
            {"function": "a.b_c.D1:e"},
        ],
        "prompts": {
            "uri": "package://rlhf_samples/a.jsonl",
            "promptKey": "prompt",
            "chatTemplate": "{{ messages[0].content }}",
            "maxPromptTokens": 64,
            "overlong": "Drop",
            "shuffle": False,
            "seed": 1,
        },
        "evaluation": {
            "reasoningGym": {"task": "chain_sum", "size": 64, "seed": 3, "parameters": _PARAMETER},
            "promptKey": "prompt",
            "everyEpisodes": 2,
            "rewards": [{"function": "rewards:exact"}],
        },
        "rollout": {
            "promptsPerEpisode": 8,
            "samplesPerPrompt": 4,
            "maxNewTokens": 16,
            "temperature": 0.7,
            "topP": 0.95,
            "topK": 50,
            "stop": ["\n\n", "Question:"],
            "stopTokenIds": [7],
        },
        "head": {
            "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"nvidia.com/gpu": 1}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"disk": "ssd"}}},
        },
        "makers": {
            "replicas": 2,
            "maxBatchSamples": 1_000_000,
            "quantization": "Int8",
            "tensorParallel": 2,
            "resources": {"requests": {"cpu": 1}, "limits": {"cpu": "2"}},
            "template": {"metadata": {"annotations": {"a": "b"}}, "spec": {"tolerations": [{"operator": "Exists"}]}},
        },
        "trainers": {
            "replicas": 2,
            "perPod": 2,
            "strategy": "ZeRO3",
            "offload": "All",
            "gradientCheckpointing": True,
            "tensorParallel": 1,
            "microBatchSize": 16,
            "balance": "Dynamic",
            "pinMemory": True,
            "resources": {"requests": {"cpu": 1}, "limits": {"cpu": "2"}},
            "template": {"metadata": {"labels": {}}, "spec": {"terminationGracePeriodSeconds": 5}},
        },
        "buffer": {"capacity": 100_000_000},
        "weightSync": {"deadlineSeconds": 30},
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "storage"}}, "everyEpisodes": 1, "keep": 2},
        "runtime": {
            "image": "registry.example.com/team/runtime:1",
            "rayVersion": "2.60.0",
            "imagePullSecrets": [{"name": "pull-secret"}],
            "env": [
                {"name": "PLAIN", "value": "x"},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key.txt"}}},
                {"name": "SETTING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "key"}}},
            ],
            "envFrom": [{"secretRef": {"name": "token"}}, {"configMapRef": {"name": "settings"}}],
            "code": {"configMap": {"name": "rewards"}},
        },
        "backoffLimit": 2,
        "preRunningDeadlineSeconds": 600,
        "progressDeadlineSeconds": 600,
    },
}


def bases() -> tuple[Json, Json]:
    """Two valid jobs that differ in every pair of alternatives."""
    other = copy.deepcopy(BASE)
    spec = other["spec"]
    spec["evaluation"] |= {"uri": "/data/held out.jsonl"}
    spec["prompts"] |= {"reasoningGym": spec["evaluation"].pop("reasoningGym")}
    del spec["prompts"]["uri"]
    spec["checkpoint"]["storage"] = {"path": "/mnt/storage"}
    del spec["algorithm"]["group"]
    spec["algorithm"] |= {
        "type": "PPO",
        "gae": {"gamma": 1, "lambda": 0.95, "whiten": True},
        "critic": {"optimizer": spec["algorithm"]["optimizer"], "valueClip": 0.2},
    }
    lora = {"rank": 8, "alpha": 16, "targets": ["q_proj"]}
    spec["models"] |= {
        "critic": {"uri": "/models/critic", "dtype": "bfloat16", "factory": "models:make", "lora": lora},
        "reward": {"uri": "/models/reward", "dtype": "bfloat16", "factory": "models:make"},
    }
    endpoint = {"url": "https://judge.example.com:8443/v1", "retries": 2, "tokenEnv": "TOKEN", "maxBatchSamples": 64}
    scored = {"name": "judge", "http": endpoint, "timeoutSeconds": 5, "weight": 0.5}
    spec["rewards"] = [scored, {"model": "reward"}]
    spec["evaluation"]["rewards"] = [scored, {"model": "reward"}]
    spec["runtime"]["code"] = {"path": "/opt/code"}
    del spec["trainers"]["microBatchSize"]
    spec["trainers"] |= {
        "maxTokensPerMicroBatch": 1_000_000,
        "strategy": "DDP",
        "offload": "None",
        "gradientCheckpointing": False,
        "strategyFactory": "strategies:make",
    }
    return copy.deepcopy(BASE), other


def changed(base: Json, place: Path, value: Any) -> Json:
    """A copy of ``base`` with the value at ``place`` replaced, made, or taken away."""
    document = copy.deepcopy(base)
    container: Any = document
    for part in place[:-1]:
        container = container[part]
    if value is ABSENT:
        del container[place[-1]]
    else:
        container[place[-1]] = value
    return document


def merged(base: Json, change: Json) -> Json:
    """A copy of ``base`` with the objects of ``change`` laid over it."""
    both = copy.deepcopy(base)
    for key, value in change.items():
        both[key] = merged(both.get(key, {}), value) if isinstance(value, dict) else value
    return both
