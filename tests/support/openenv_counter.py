"""An OpenEnv server that counts, for the interpreter that has openenv-core: `python openenv_counter.py PORT`."""

import sys

import uvicorn  # type: ignore[import-not-found,unused-ignore]
from openenv.core.env_server import Action, Environment, Observation, State, create_app  # type: ignore[import-not-found]
from pydantic import Field


class Count(Action):  # type: ignore[misc]
    """Adds to the count."""

    by: int = Field(ge=0, le=2, description="How much.")


class Counted(Observation):  # type: ignore[misc]
    count: int


class CountEnvironment(Environment):  # type: ignore[misc]
    """Counts to 3; adding 0 raises an error, as a bug of an environment does."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def reset(self, seed: int | None = None, start: int = 0) -> Counted:
        self.count = start
        return Counted(count=self.count)

    def step(self, action: Count) -> Counted:
        if action.by == 0:
            raise KeyError("zero")
        self.count += action.by
        return Counted(count=self.count, reward=float(action.by), done=self.count >= 3)

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    app = create_app(CountEnvironment, Count, Counted, env_name="count", max_concurrent_envs=2)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
