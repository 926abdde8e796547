"""The sample policy, its prompts and its rewards, as they are committed."""

import json
from pathlib import Path

import numpy as np
import pytest
import reasoning_gym
import rlhf_samples.addition
import torch
from rlhf_runtime.engines.engine import Request, Sampling
from rlhf_runtime.engines.transformers_engine import TransformersEngine
from rlhf_samples.addition import exact_answer, shuffled_answer
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = Path(rlhf_samples.addition.__file__).parent
TASK = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}


@pytest.mark.parametrize(
    ("answer", "completion", "reward"),
    [("115", "511", 1.0), ("115", "115", 0.0), ("115", "5110", 0.0), ("-30", "03-", 1.0), ("0", "", 0.0)],
)
def test_a_right_completion_is_the_answer_back_to_front(answer: str, completion: str, reward: float) -> None:
    assert exact_answer(["prompt"], [completion], answer=[answer], other=[1]) == [reward]


def test_the_control_has_as_many_rewards_and_deals_them_without_looking() -> None:
    answers = [str(number) for number in range(100, 300)]
    prompts = [f"{answer} =" for answer in answers]
    completions = [answer[::-1] if index < 100 else "x" for index, answer in enumerate(answers)]
    exact = exact_answer(prompts, completions, answer=answers)
    control = shuffled_answer(prompts, completions, answer=answers)
    assert control == shuffled_answer(prompts, completions, answer=answers)
    assert sum(control) == sum(exact) == 100
    assert abs(np.corrcoef(exact, control)[0, 1]) < 0.25


def test_a_prompt_of_the_task_is_seven_tokens_and_a_completion_is_its_characters() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "policy")
    problem = reasoning_gym.create_dataset("chain_sum", size=1, seed=0, **TASK)[0]
    ids = tokenizer(problem["question"])["input_ids"]
    assert len(ids) == 7
    assert tokenizer.unk_token_id not in ids
    completion = tokenizer("03-")["input_ids"]
    assert len(completion) == 3
    assert tokenizer.decode([*completion, tokenizer.eos_token_id], skip_special_tokens=True) == "03-"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.bos_token_id is None


def test_the_prompts_file_holds_distinct_problems_with_their_answers() -> None:
    rows = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) == 1500
    for row in rows:
        left, sign, right = row["prompt"].removesuffix(" =").split(": ")[1].split(" ")
        assert int(row["answer"]) == (int(left) + int(right) if sign == "+" else int(left) - int(right))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        pytest.param("policy", 0.4, 0.6, id="the policy about half"),
        pytest.param("teacher", 0.96, 1.0, id="the teacher nearly all"),
    ],
)
def test_so_many_problems_are_answered_right_when_sampled(name: str, least: float, most: float) -> None:
    assert sum(path.stat().st_size for path in (FOLDER / name).iterdir()) <= 2 * 1024**2
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / name)
    model = AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32)
    engine = TransformersEngine(model, end_ids=(tokenizer.eos_token_id,))
    problems = list(reasoning_gym.create_dataset("chain_sum", size=500, seed=0, **TASK))
    requests = [
        Request(
            prompt_index=index,
            prompt_ids=np.array(tokenizer(problem["question"])["input_ids"], np.int32),
            samples=1,
        )
        for index, problem in enumerate(problems)
    ]
    groups = engine.generate(requests, Sampling(temperature=1.0, max_new_tokens=4, seed=0))
    completions = [tokenizer.decode(g.rollouts[0].completion_ids, skip_special_tokens=True) for g in groups]
    rewards = exact_answer(
        [problem["question"] for problem in problems],
        completions,
        answer=[problem["answer"] for problem in problems],
    )
    assert least < np.mean(rewards) <= most
