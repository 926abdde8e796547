"""``spec.rewards``: what a completion is worth, as the weighted sum of functions, endpoints and a model."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from rlhf_api.schema import ApiModel, EnvName, FunctionPath, cel

#: Most rewards of a job.
MAX_REWARDS = 16
#: Seconds for one call of a function, or one try of a request, where `timeoutSeconds` is not set.
DEFAULT_TIMEOUT_SECONDS = 60
#: Name of the reward that models.reward gives, where it has none of its own.
MODEL_REWARD = "models.reward"

#: Host names, IPv4 and bracketed IPv6 addresses; no user and password, which would end up in status and logs. A path
#: holds printable ASCII but `"`, `#` and `$`.
_HTTP_URL = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[!%-~]*)?$"


class HttpReward(ApiModel):
    """An endpoint that scores: it is POSTed `{"prompts": [...], "completions": [...], "columns": {NAME: [...]}}` as
    JSON, one entry a completion, and answers `{"rewards": [...]}`, one number or null a completion."""

    url: Annotated[str, Field(min_length=9, max_length=512, pattern=_HTTP_URL)]
    """Where it is: `http://` or `https://`. Required. 9 to 512 characters."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """How often a request is tried again, after growing pauses, when there is no connection, no answer in time, or
    status 429 or 5xx. Default 4, range 0 to 20."""
    token_env: EnvName | None = None
    """Environment variable (of `runtime.env` or `runtime.envFrom`) that holds a bearer token to send. Default none,
    1 to 253 characters."""
    max_batch_samples: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Completions in one request at most; a larger batch becomes several requests, a few at a time. Default none: a
    maker's whole batch. Range 1 to 1,000,000."""


_ONE_KIND = (
    "(has(self.__function__) ? 1 : 0) + (has(self.model) ? 1 : 0) + (has(self.http) ? 1 : 0) == 1",
    "exactly one of function, model and http must be set",
)
_A_MODEL_TAKES_ITS_TIME = (
    "!has(self.model) || !has(self.timeoutSeconds)",
    "is for functions and endpoints: a model is computed in the maker itself",
    ".timeoutSeconds",
)


class Reward(ApiModel):
    """One part of the reward: exactly one of `function`, `model` and `http`."""

    model_config = ConfigDict(json_schema_extra=cel(_ONE_KIND, _A_MODEL_TAKES_ITS_TIME))

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")] | None = None
    """What reports call it. Default none: the function's path, the URL, or `models.reward`. 1 to 64 characters."""
    function: FunctionPath | None = None
    """A Python function `f(prompts, completions, **columns)`, `def` or `async def`, which returns one number or None a
    completion: `package.module:function`, importable in the image or from `runtime.code`. It runs in a process of its
    own. Default none, 3 to 512 characters."""
    model: Literal["reward"] | None = None
    """`reward`: models.reward scores, in the maker. Default none."""
    http: HttpReward | None = None
    """An HTTP endpoint scores. Default none."""
    weight: Annotated[float, Field(ge=-1e6, le=1e6)] = 1.0
    """Factor of this reward in the sum. Default 1, range -1e6 to 1e6."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = None
    """Seconds one call of a function may take (one batch; then its process is ended), or one try of a request. Default
    none: 60 for a function and for each try; refused for a model. Range 1 to 86,400."""

    @property
    def subject(self) -> str:
        """What it is: a function's path, a URL, or `models.reward`."""
        return self.function or (self.http.url if self.http else MODEL_REWARD)

    @property
    def title(self) -> str:
        """Its name in reports: its own, or what it is."""
        return self.name or self.subject

    @property
    def seconds(self) -> int:
        """How long one call, or one try, may take."""
        return self.timeout_seconds or DEFAULT_TIMEOUT_SECONDS


# A name holds no ":", "/" or ".", so it is never what another reward is called by default.
_NAMES_DIFFER = (
    "self.all(a, !has(a.name) || self.exists_one(b, has(b.name) && b.name == a.name))",
    "two rewards have the same name",
)
_UNNAMED_DIFFER = (
    "self.all(a, has(a.name) || !has(a.__function__) || "
    "self.exists_one(b, !has(b.name) && has(b.__function__) && b.__function__ == a.__function__)) && "
    "self.all(a, has(a.name) || !has(a.http) || "
    "self.exists_one(b, !has(b.name) && has(b.http) && b.http.url == a.http.url)) && "
    "self.all(a, has(a.name) || !has(a.model) || self.exists_one(b, !has(b.name) && has(b.model)))",
    "a function, an endpoint or the model is there twice without a name: give each a name of its own",
)
Rewards = Annotated[
    list[Reward], Field(min_length=1, max_length=MAX_REWARDS, json_schema_extra=cel(_NAMES_DIFFER, _UNNAMED_DIFFER))
]
