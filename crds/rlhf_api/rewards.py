"""``spec.rewards``: the reward of a completion, as the weighted sum of functions, endpoints and a model."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rlhf_api.schema import ApiModel, EnvName, FunctionPath, cel

#: Most rewards of a job.
MAX_REWARDS = 16
#: Seconds for one call of a function, or one try of a request, where `timeoutSeconds` is not set.
DEFAULT_TIMEOUT_SECONDS = 60
#: Default name of a reward that comes from models.reward.
MODEL_REWARD = "models.reward"

#: Host names, IPv4 and bracketed IPv6 addresses; no user and password, which would end up in status and logs. A path
#: holds printable ASCII but `"`, `#` and `$`.
_HTTP_URL = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!%-~]*)?$"


class HttpReward(ApiModel):
    """An HTTP endpoint that scores completions. It receives a POST of the JSON object `{"prompts": [...],
    "completions": [...], "columns": {NAME: [...]}}`, whose lists have one entry for each completion, and answers
    `{"rewards": [...]}` with one number or null for each completion."""

    url: Annotated[str, Field(min_length=9, max_length=512, pattern=_HTTP_URL)]
    """URL of the endpoint, beginning with `http://` or `https://`. Required. 9 to 512 characters."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """Number of times that a request is retried, after growing pauses, when the connection fails, the answer is late,
    or its status is 429 or 5xx. Default 4, range 0 to 20."""
    token_env: EnvName | None = None
    """Name of the environment variable, set by `runtime.env` or `runtime.envFrom`, that holds the bearer token to send.
    Default none, which sends no token; 1 to 253 characters."""
    max_batch_samples: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Largest number of completions in a request. A larger batch is sent as several requests, a few at a time. Default
    none, which sends a maker's whole batch; range 1 to 1,000,000."""


_ONE_KIND = (
    "(has(self.__function__) ? 1 : 0) + (has(self.model) ? 1 : 0) + (has(self.http) ? 1 : 0) == 1",
    "exactly one of function, model and http must be set",
)
_A_MODEL_TAKES_ITS_TIME = (
    "!has(self.model) || !has(self.timeoutSeconds)",
    "must not be set where model is set: a reward model runs inside the maker, without a timeout",
    ".timeoutSeconds",
)


class Reward(ApiModel):
    """One part of the reward: exactly one of `function`, `model` and `http`."""

    model_config = ConfigDict(json_schema_extra=cel(_ONE_KIND, _A_MODEL_TAKES_ITS_TIME))

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")] | None = None
    """Name of the reward in reports. Default none, which means the path of the function, the URL, or `models.reward`; 1
    to 64 characters."""
    function: FunctionPath | None = None
    """A Python function, as `package.module:function`, importable in the image or from `runtime.code`. It is called as
    `f(prompts, completions, **columns)`, may be `def` or `async def`, and returns one number or None for each
    completion. It runs in a process of its own. Default none, 3 to 512 characters."""
    model: Literal["reward"] | None = None
    """`reward` means that models.reward scores the completions, inside the maker. Default none."""
    http: HttpReward | None = None
    """An HTTP endpoint that scores the completions. Default none."""
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Weight of this reward in the sum. Default 1, range -1e6 to 1e6."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Seconds that one call of the function, or one try of a request, may take. A function that takes longer is stopped
    together with its process. Must not be set for a model. Default none, which means 60 for a function or an endpoint;
    range 1 to 86,400."""

    @property
    def subject(self) -> str:
        """Where the reward comes from: the path of a function, a URL, or `models.reward`."""
        return self.function or (self.http.url if self.http else MODEL_REWARD)

    @property
    def title(self) -> str:
        """Name of the reward in reports: `name`, or else `subject`."""
        return self.name or self.subject

    @property
    def seconds(self) -> int:
        """Seconds that one call, or one try, may take."""
        return self.timeout_seconds or DEFAULT_TIMEOUT_SECONDS


# A name contains no ":", "/" or ".", so it never equals the default name of another reward.
_NAMES_DIFFER = (
    "self.all(a, !has(a.name) || self.exists_one(b, has(b.name) && b.name == a.name))",
    "the names of rewards must differ",
)
_UNNAMED_DIFFER = (
    "self.all(a, has(a.name) || !has(a.__function__) || "
    "self.exists_one(b, !has(b.name) && has(b.__function__) && b.__function__ == a.__function__)) && "
    "self.all(a, has(a.name) || !has(a.http) || "
    "self.exists_one(b, !has(b.name) && has(b.http) && b.http.url == a.http.url)) && "
    "self.all(a, has(a.name) || !has(a.model) || self.exists_one(b, !has(b.name) && has(b.model)))",
    "rewards without a name must differ: the same function, URL or model occurs twice, and all but one need a name",
)
Rewards = Annotated[
    list[Reward], Field(min_length=1, max_length=MAX_REWARDS, json_schema_extra=cel(_NAMES_DIFFER, _UNNAMED_DIFFER))
]
