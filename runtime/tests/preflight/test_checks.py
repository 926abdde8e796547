"""What is checked before weights are loaded: each thing that can be wrong with a job's files is said as it is."""

import errno
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rlhf_api.job import RLHFJob
from rlhf_api.run import RunConfig, run_config
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.preflight.checks import check_files, preflight
from rlhf_runtime.storage.run_directory import RunDirectory, storage_failure
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "0123456789+-= ?abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a character tokenizer of 44 tokens, and random weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: number for number, token in enumerate([*special, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    config = {"vocab_size": len(vocabulary), "max_position_embeddings": 32}
    config |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **config)).save_pretrained(folder)
    return folder


@pytest.fixture
def job(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A job's spec whose every file is right, all of them below `tmp_path`."""
    shutil.copytree(model, tmp_path / "model")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held_out.jsonl").write_text('{"prompt": "1+2=", "answer": "3"}\n{"prompt": "9+9=", "answer": "18"}\n')
    (tmp_path / "preflight_rewards.py").write_text(
        "def right(prompts, completions, answer, **columns):\n"
        "    return [float(c == a) for c, a in zip(completions, answer)]\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return {
        "episodes": 2,
        "algorithm": {"type": "GRPO", "optimizer": {"learningRate": 0.001}},
        "models": {"actor": {"uri": str(tmp_path / "model")}},
        "rewards": [{"function": "preflight_rewards:right"}],
        "prompts": {"uri": str(tmp_path / "prompts.jsonl"), "maxPromptTokens": 8},
        "evaluation": {"uri": str(tmp_path / "held_out.jsonl")},
        "rollout": {"promptsPerEpisode": 2, "samplesPerPrompt": 4, "maxNewTokens": 8},
        "checkpoint": {"storage": {"path": "/storage"}},
    }


def config(spec: dict[str, Any]) -> RunConfig:
    metadata = {"name": "test", "namespace": "default", "uid": "00000000-1111"}
    job = RLHFJob.model_validate(
        {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": metadata, "spec": spec}
    )
    return run_config(job, "/storage", attempt=1, incarnation=1)


def test_a_good_job_passes_and_gives_what_the_coordinator_needs(job: dict[str, Any], tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    began = time.monotonic()
    found = preflight(config(job), directory)
    assert time.monotonic() - began < 60
    assert (found.pad_id, found.eos_id) == (0, 1)
    assert (found.model.context, found.model.vocabulary) == (32, 3 + len(CHARACTERS))
    assert (len(found.training), found.sources["prompts"].held_out) == (24, 1)
    assert [prompt.text for prompt in found.held_out] == ["1+2=", "9+9="]
    texts = {found.training.prompt_at(cursor).text for cursor in range(24)}
    assert len(texts) == 24
    assert "1+2=" not in texts
    prompt = found.training.prompt_at(0)
    assert found.tokenizer.convert_ids_to_tokens(list(prompt.token_ids)) == list(prompt.text)
    assert prompt.columns == {"answer": str(eval(prompt.text[:-1]))}
    # The probe is gone.
    assert directory.names(tmp_path / "run" / "probes") == []


def test_sources_of_messages_and_of_several_files_pass_as_well(job: dict[str, Any], tmp_path: Path) -> None:
    messages(job, tmp_path)
    job["prompts"] |= {"chatTemplate": "{{ messages[0].content }}", "overlong": "Drop", "maxPromptTokens": 7}
    (tmp_path / "held").mkdir()
    for name, count in (("a", 2), ("b", 1)):
        prompts = [[{"role": "user", "content": f"{i}+{count}="}] for i in range(count)]
        pq.write_table(pa.table({"prompt": prompts, "answer": ["x"] * count}), tmp_path / "held" / f"{name}.parquet")
    job["evaluation"] = {"uri": str(tmp_path / "held" / "*.parquet")}
    with (tmp_path / "prompts.jsonl").open("a") as file:
        file.write('{"prompt": [{"role": "user", "content": "11111+2222="}], "answer": "x"}\n')
    found = check_files(config(job))
    assert found.sources["prompts"].to_dict() == {"rows": 26, "heldOut": 3, "dropped": 1, "truncated": 0}
    assert found.sources["evaluation"].to_dict() == {"rows": 3, "heldOut": 0, "dropped": 0, "truncated": 0}
    assert [prompt.text for prompt in found.held_out] == ["0+2=", "1+2=", "0+1="]
    assert found.held_out[0].value == [{"role": "user", "content": "0+2="}]


def edit_json(path: Path, **changes: Any) -> None:
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def no_model(spec: dict[str, Any], root: Path) -> None:
    spec["models"]["actor"]["uri"] = str(root / "models" / "policy")


def no_config(spec: dict[str, Any], root: Path) -> None:
    (root / "model" / "config.json").unlink()


def broken_config(spec: dict[str, Any], root: Path) -> None:
    (root / "model" / "config.json").write_text("{")


def no_weights(spec: dict[str, Any], root: Path) -> None:
    (root / "model" / "model.safetensors").unlink()


def pointer_for_weights(spec: dict[str, Any], root: Path) -> None:
    (root / "model" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\n")


def cut_weights(spec: dict[str, Any], root: Path) -> None:
    (root / "model" / "model.safetensors").write_bytes(struct.pack("<Q", 5000) + b'{"a": ')


def missing_shard(spec: dict[str, Any], root: Path) -> None:
    (root / "model" / "model.safetensors").rename(root / "model" / "model-1-of-2.safetensors")
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (root / "model" / "model.safetensors.index.json").write_text(json.dumps(index))


def no_tokenizer(spec: dict[str, Any], root: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (root / "model" / name).unlink()


def no_end_token(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "model" / "tokenizer_config.json", eos_token=None)
    (root / "model" / "special_tokens_map.json").unlink(missing_ok=True)


def other_vocabulary(spec: dict[str, Any], root: Path) -> None:
    edit_json(root / "model" / "config.json", vocab_size=20)


def small_context(spec: dict[str, Any], root: Path) -> None:
    spec["rollout"]["maxNewTokens"] = 29


def other_scheme(spec: dict[str, Any], root: Path) -> None:
    spec["models"]["actor"]["uri"] = "ftp://org/model"


def long_held_out_prompt(spec: dict[str, Any], root: Path) -> None:
    (root / "held_out.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+1+1+1+1=", "answer": "5"}\n')


def all_held_out(spec: dict[str, Any], root: Path) -> None:
    spec["evaluation"]["uri"] = spec["prompts"]["uri"]


def no_function(spec: dict[str, Any], root: Path) -> None:
    spec["rewards"][0]["function"] = "preflight_rewards:wrong"


def column_only_in_training(spec: dict[str, Any], root: Path) -> None:
    (root / "held_out.jsonl").write_text('{"prompt": "1+2="}\n')


def messages(spec: dict[str, Any], root: Path) -> None:
    """Training rows that have messages, of a tokenizer without a chat template."""
    rows = [json.loads(line) for line in (root / "prompts.jsonl").read_text().splitlines()]
    for row in rows:
        row["prompt"] = [{"role": "user", "content": row["prompt"]}]
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def broken_template(spec: dict[str, Any], root: Path) -> None:
    messages(spec, root)
    spec["prompts"]["chatTemplate"] = "{% for m in messages %}\n{{ m.content }"


def template_without_messages(spec: dict[str, Any], root: Path) -> None:
    spec["prompts"]["chatTemplate"] = "{{ messages[0].content }}"


def all_overlong(spec: dict[str, Any], root: Path) -> None:
    spec["prompts"] |= {"maxPromptTokens": 3, "overlong": "Drop"}


def held_out_all_overlong(spec: dict[str, Any], root: Path) -> None:
    (root / "held_out.jsonl").write_text('{"prompt": "1111+2222=", "answer": "3333"}\n')
    spec["prompts"]["overlong"] = "Drop"


def unknown_task(spec: dict[str, Any], root: Path) -> None:
    spec["prompts"] = {"reasoningGym": {"task": "chain_summ", "size": 3}}


def no_evaluation_function(job: dict[str, Any], folder: Path) -> None:
    job["evaluation"]["rewards"] = [{"function": "preflight_rewards:wrong"}]


@pytest.mark.parametrize(
    ("breaks", "reason", "parts"),
    [
        pytest.param(no_model, "ModelInvalid",
                     ["there is no folder", "models/policy; ", "has held_out.jsonl, model,", "; did you mean model?"],
                     id="a model path that is not there"),
        pytest.param(other_scheme, "ModelInvalid", ["ftp://org/model: expected an absolute path"], id="another scheme"),
        pytest.param(no_config, "ModelInvalid", ["there is no config.json in", ", model.safetensors"],
                     id="no config.json"),
        pytest.param(broken_config, "ModelInvalid", ["cannot read", "config.json"], id="a config.json cut off"),
        pytest.param(no_weights, "ModelInvalid", ["no weights in", "expected model.safetensors", "has config.json"],
                     id="no weights"),
        pytest.param(pointer_for_weights, "ModelInvalid", ["is not a whole safetensors file", "Git LFS pointer"],
                     id="a Git LFS pointer in place of weights"),
        pytest.param(cut_weights, "ModelInvalid", ["(14 bytes) is not a whole safetensors file"], id="weights cut off"),
        pytest.param(missing_shard, "ModelInvalid", ["model-2-of-2.safetensors is missing"], id="a shard missing"),
        pytest.param(no_tokenizer, "ModelInvalid", ["no tokenizer can be loaded from"], id="no tokenizer"),
        pytest.param(no_end_token, "ModelInvalid", ["no end-of-sequence token"], id="no end token"),
        pytest.param(other_vocabulary, "ModelInvalid", ["44 tokens, the model's embedding 20"],
                     id="a tokenizer that has more tokens than the model"),
        pytest.param(small_context, "PromptsInvalid", ["4 tokens and rollout.maxNewTokens is 29: together 33", "32"],
                     id="prompt and completion beyond the model's positions"),
        pytest.param(long_held_out_prompt, "PromptsInvalid",
                     ["held_out.jsonl, line 2", "10 tokens, expected at most 8"], id="a held-out prompt too long"),
        pytest.param(messages, "ChatTemplateMissing",
                     ["prompts: the rows have messages, but the tokenizer of", "or in prompts.chatTemplate"],
                     id="messages without a chat template"),
        pytest.param(broken_template, "PromptsInvalid", ["prompts.chatTemplate, line 2: ", "expected a Jinja template"],
                     id="a chat template cut off"),
        pytest.param(template_without_messages, "PromptsInvalid", ["prompts.chatTemplate: no row has messages"],
                     id="a chat template for text"),
        pytest.param(all_overlong, "DatasetEmpty", ["prompts: 0 of 25 rows left after overlong filter"],
                     id="all prompts overlong"),
        pytest.param(held_out_all_overlong, "DatasetEmpty", ["evaluation: 0 of 1 rows left after overlong filter"],
                     id="all held-out prompts overlong"),
        pytest.param(all_held_out, "DatasetEmpty", ["0 of 25 rows left"], id="every training prompt held out"),
        pytest.param(no_function, "RewardFunctionInvalid", ["has no 'wrong'; it has right"], id="no such function"),
        pytest.param(column_only_in_training, "RewardFunctionInvalid", ["needs a column 'answer'"],
                     id="a column that only training rows have"),
        pytest.param(no_evaluation_function, "RewardFunctionInvalid",
                     ["evaluation.rewards[0] (preflight_rewards:wrong): ", "has no 'wrong'"],
                     id="no such function for the evaluation"),
        pytest.param(unknown_task, "PromptsInvalid", ["there is no task 'chain_summ'; close: chain_sum"],
                     id="an unknown reasoning_gym task"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_permanent(
    job: dict[str, Any],
    tmp_path: Path,
    breaks: Callable[[dict[str, Any], Path], None],
    reason: str,
    parts: list[str],
) -> None:
    breaks(job, tmp_path)
    with pytest.raises(RunFailure) as error:
        check_files(config(job))
    assert (error.value.reason, error.value.permanent) == (reason, True)
    assert "\n" not in error.value.message
    for part in parts:
        assert part in error.value.message


def test_an_evaluation_with_rewards_of_its_own_needs_no_columns_of_the_job_s(
    job: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "held_out.jsonl").write_text('{"prompt": "9+9=", "truth": "18"}\n')
    with (tmp_path / "preflight_rewards.py").open("a") as code:
        code.write("def true(prompts, completions, truth):\n    return [1.0] * len(completions)\n")
    job["evaluation"]["rewards"] = [{"function": "preflight_rewards:true"}]
    assert check_files(config(job)).held_out[0].columns == {"truth": "18"}


def test_an_endpoint_is_asked_by_the_driver_and_not_where_files_are_checked(
    job: dict[str, Any], tmp_path: Path
) -> None:
    job["rewards"] += [{"http": {"url": "http://127.0.0.1:9/score", "retries": 0}}]
    check_files(config(job))
    with pytest.raises(RunFailure, match=r"rewards\[1\] \(http://127.0.0.1:9/score\): no connection") as error:
        preflight(config(job), RunDirectory(tmp_path / "run"))
    assert (error.value.reason, error.value.permanent) == ("RewardEndpointFailed", False)


@pytest.mark.parametrize("own", [False, True])
def test_a_number_that_json_has_not_is_for_functions_and_not_for_endpoints(
    own: bool, job: dict[str, Any], tmp_path: Path
) -> None:
    with (tmp_path / "held_out.jsonl").open("a") as file:
        file.write('{"prompt": "8+8=", "answer": "16", "level": {"low": 1, "high": -Infinity}}\n')
    assert check_files(config(job)).held_out[2].columns["level"]["high"] == -math.inf
    endpoint = {"http": {"url": "http://127.0.0.1:9/score"}}
    if own:
        job["evaluation"]["rewards"] = [endpoint]
    else:
        job["rewards"].append(endpoint)
    with pytest.raises(RunFailure) as error:
        check_files(config(job))
    assert (error.value.reason, error.value.permanent) == ("PromptsInvalid", True)
    place = "evaluation.rewards[0]" if own else "rewards[1]"
    found = f"{tmp_path}/held_out.jsonl, line 3: column 'level' has -Infinity, expected a number that JSON has, as "
    assert error.value.message.startswith(found + place)


def test_without_a_pad_token_the_end_fills_batches(job: dict[str, Any], tmp_path: Path) -> None:
    edit_json(tmp_path / "model" / "tokenizer_config.json", pad_token=None)
    found = check_files(config(job))
    assert (found.pad_id, found.eos_id) == (1, 1)


def test_a_probe_is_read_where_the_storage_is_shared(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    token = directory.write_probe()
    code = (
        "import sys; from rlhf_runtime.storage.run_directory import RunDirectory; "
        "RunDirectory(sys.argv[1]).read_probe(sys.argv[2], 'x')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), token], check=True, timeout=60)


def test_a_probe_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    here, there = RunDirectory(tmp_path / "here"), RunDirectory(tmp_path / "there")
    token = here.write_probe()
    late = threading.Timer(0.6, shutil.copytree, [tmp_path / "here", tmp_path / "there"])
    late.start()
    there.read_probe(token, "pod maker-1", seconds=20)
    late.join()


def test_a_storage_that_is_not_shared_names_the_pod(tmp_path: Path) -> None:
    token = RunDirectory(tmp_path / "here").write_probe()
    with pytest.raises(RunFailure, match="pod maker-1 does not see the file") as error:
        RunDirectory(tmp_path / "there").read_probe(token, "pod maker-1", seconds=0.3)
    assert (error.value.reason, error.value.permanent) == ("StorageNotShared", True)


@pytest.mark.parametrize(
    ("number", "reason", "permanent"),
    [
        pytest.param(errno.EROFS, "StorageReadOnly", True, id="a read-only mount"),
        pytest.param(errno.EACCES, "StorageReadOnly", True, id="a folder of another user"),
        pytest.param(errno.ENOSPC, "StorageFailed", False, id="full"),
        pytest.param(errno.EIO, "StorageFailed", False, id="broken"),
        pytest.param(errno.ESTALE, "StorageFailed", False, id="a server that was restarted"),
    ],
)
def test_what_an_error_of_the_storage_means(number: int, reason: str, permanent: bool) -> None:
    failure = storage_failure(OSError(number, os.strerror(number), "/mnt/x"), "cannot write in /mnt")
    assert (failure.reason, failure.permanent) == (reason, permanent)
    assert failure.message == f"cannot write in /mnt: {os.strerror(number)} (/mnt/x)"


def test_a_folder_where_nobody_may_write_is_read_only() -> None:
    # Also to root: the kernel lets nobody make a folder there.
    with pytest.raises(RunFailure, match="cannot write in /sys/rlhf") as error:
        RunDirectory("/sys/rlhf").write_probe()
    assert (error.value.reason, error.value.permanent) == ("StorageReadOnly", True)
