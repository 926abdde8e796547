"""Reward models and critics: where the score is, what a missing head means, and samples read in other tokens."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rlhf_api.models import Model
from rlhf_runtime.failures import RunFailure
from rlhf_runtime.models.critic import Critic, load_critic
from rlhf_runtime.models.model_folder import model_folder
from rlhf_runtime.models.reward_model import RewardModel, load_reward_model
from rlhf_runtime.models.reward_scorer import RewardScorer, load_reward_scorer
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, padded, write_model, write_tokenizer
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

END = VOCABULARY["<eos>"]
#: As chat models have one: the end of a turn.
OTHER_END = VOCABULARY["+"]


class PositionScores(nn.Module):
    """Scores every position by its token's id, plus a hundredth of its position."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        return input_ids + position_ids / 100


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad", [0, 7])
def test_the_score_is_at_the_last_real_token_whatever_pads(side: str, pad: int) -> None:
    # 7 is the end token and may be the pad: the first row ends with it, the second has it in the middle, the third
    # is nothing else.
    batch = padded([[5, 6, 7], [7, 3], [7]], 5, side, pad)
    assert RewardModel(PositionScores())(**batch).tolist() == pytest.approx([7.02, 3.01, 7.0])


def test_a_critic_without_a_head_starts_at_exactly_zero_and_with_one_at_its_scores(tmp_path: Path) -> None:
    policy, scored = write_model(tmp_path / "policy"), write_model(tmp_path / "scored", head="score")
    batch = padded([[5, 6, 7], [3, 2]], 4, "left")
    values = load_critic(Model(uri=str(policy)), policy, "float32")(**batch)
    assert values.shape == (2, 4)
    assert torch.equal(values, torch.zeros(2, 4))
    head = AutoModelForSequenceClassification.from_pretrained(scored).score.weight
    critic = load_critic(Model(uri=str(scored)), scored, "float32")
    assert torch.equal(critic.get_parameter("model.score.weight"), head)
    assert all(parameter.requires_grad for parameter in critic.parameters())


def bare_policy(folder: Path) -> None:
    write_model(folder)


def two_labels(folder: Path) -> None:
    write_model(folder, head="score", num_labels=2)


def layer_missing(folder: Path) -> None:
    write_model(folder, head="score", num_hidden_layers=1)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))


def not_finite(folder: Path) -> None:
    write_model(folder, head="score")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.inf
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        pytest.param(not_finite, ["model.layers.1.mlp.up_proj.weight in ", "not finite"], id="an infinite weight"),
        pytest.param(bare_policy, ["missing score.weight", "would be random"], id="no head"),
        pytest.param(two_labels, ["score.weight", "[2, 32]", "[1, 32]"], id="two labels"),
        pytest.param(layer_missing, ["missing model.layers.1.", "more; they would be random"], id="a layer missing"),
    ],
)
def test_a_reward_model_is_whole_or_refused(write: Callable[[Path], None], parts: list[str], tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(RunFailure) as error:
        load_reward_model(Model(uri=str(tmp_path)), tmp_path, "float32")
    assert (error.value.reason, error.value.permanent) == ("ModelInvalid", True)
    for part in ["models.reward.uri: ", *parts]:
        assert part in error.value.message


def scorer_of(folder: Path, actor_folder: Path) -> RewardScorer:
    model, actor_tokenizer = Model(uri=str(folder)), AutoTokenizer.from_pretrained(actor_folder)
    return load_reward_scorer(model, model_folder(model.uri, "models.reward"), actor_tokenizer, {END, OTHER_END})


def test_equal_tokens_are_scored_as_they_are(tmp_path: Path) -> None:
    reward = write_model(tmp_path / "reward", head="score")
    scorer = scorer_of(reward, reward)
    model = load_reward_model(Model(uri=str(reward)), reward, "float32")
    found = scorer.score([[2, 3, 4], [5]], [[6, END], [7, 8, 9]], ["not read", "not read"])
    with torch.no_grad():
        expected = [float(model(**padded([row], len(row), "left"))) for row in ([2, 3, 4, 6, END], [5, 7, 8, 9])]
    assert found == pytest.approx(expected, abs=1e-5)


def test_other_tokens_are_read_from_the_text(tmp_path: Path) -> None:
    """The reward model's tokens are the actor's in another order, with a beginning of its own and another end."""
    actor = write_model(tmp_path / "actor")
    reward = write_model(tmp_path / "reward", head="score", vocab_size=16)
    own = {"<eos>": 9, "<bos>": 15, "=": 14}
    rest = iter(i for i in range(16) if i not in own.values())
    vocabulary = own | {token: next(rest) for token in ["<pad>", *"0123456789+", "<unused>"]}
    tokenizer = write_tokenizer(reward, vocabulary, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")
    scorer = scorer_of(reward, actor)
    found = scorer.score([[2, 3]] * 3, [[4, END], [4, OTHER_END], [4]], ["01" + "2"] * 3)
    model = load_reward_model(Model(uri=str(reward)), reward, "float32")
    text = tokenizer("012", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        ended, cut = (float(model(**padded([row], len(row), "left"))) for row in ([*text, 9], text))
    assert found == pytest.approx([ended, ended, cut], abs=1e-5)

    messages = [{"role": "user", "content": "01"}, {"role": "assistant", "content": "2"}]
    with pytest.raises(RunFailure, match="no chat template to read them by"):
        scorer.score([[2, 3]], [[4, END]], [messages])
    tokenizer.chat_template = "{% for m in messages %}<bos>{{ m['content'] }}<eos>{% endfor %}"
    tokenizer.save_pretrained(reward)
    (found_one,) = scorer_of(reward, actor).score([[2, 3]], [[4, END]], [messages])
    rendered = tokenizer("<bos>01<eos><bos>2<eos>", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        assert found_one == pytest.approx(float(model(**padded([rendered], len(rendered), "left"))), abs=1e-5)


def test_a_score_that_is_no_number_and_a_sample_too_long_are_said(tmp_path: Path) -> None:
    broken = RewardScorer(NotANumber(), end_ids={END}, own_tokenizer=None, context=4)
    with pytest.raises(RunFailure, match=r"the score of '1\+1=2' is nan, expected a finite number"):
        broken.score([[2]], [[3]], ["1+1=2"])
    with pytest.raises(RunFailure, match="have 5 of the reward model's tokens, but it has 4 positions"):
        broken.score([[2, 3]], [[3, 3, 3]], ["1+1=2"])
    with pytest.raises(RunFailure, match=r"models.reward: found scores \[1\] of 2 samples, expected one each"):
        RewardScorer(OneScore(), end_ids={END}, own_tokenizer=None, context=4).score([[2], [2]], [[3], [3]], ["", ""])


def test_a_text_that_the_reward_models_tokenizer_cannot_read_is_said(tmp_path: Path) -> None:
    digits = write_tokenizer(tmp_path, {"<eos>": 0, "1": 1}, eos_token="<eos>")
    scorer = RewardScorer(OneScore(), end_ids={END}, own_tokenizer=digits, context=None)
    assert scorer.score([[2]], [[3]], ["1"]) == [0.0]
    with pytest.raises(RunFailure, match=r"models\.reward\.uri: of a prompt and its completion, the tokenizer cannot"):
        scorer.score([[2]], [[3]], ["1+1"])
    with pytest.raises(
        RunFailure, match=r"models\.reward\.uri: its tokenizer makes no tokens of '', expected at least"
    ):
        scorer.score([[2]] * 2, [[3]] * 2, ["1", ""])


class OneScore(PositionScores):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        return self.weight


class NotANumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        return torch.full(input_ids.shape[:1], torch.nan)


def test_a_critic_is_a_reward_model_at_every_position(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "gpt2", head="score")
    inner = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    batch = padded([[5, 6, 7, 8]], 4, "left")
    with torch.no_grad():
        values = Critic(inner)(**batch)[0]
        for length in range(1, 5):
            plain = inner(input_ids=batch["input_ids"][:, :length]).logits[0, 0]
            assert float(values[length - 1]) == pytest.approx(float(plain), abs=1e-5)
