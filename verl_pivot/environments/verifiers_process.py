"""An environment of verifiers in a process of its own Python, which exchanges lines of JSON with this package.

The process needs verifiers but not verl-pivot: it imports only the standard library and verifiers.
`python verifiers_process.py NAME ARGUMENTS rows LIMIT` prints the environment's data set, one row per line. With `play`
it reads {"id", "task", "base_url", "api_key"} for each trajectory and plays many trajectories at once. It answers
{"id", "reward", "metrics", "error"} when one ends; {"cancel": id} ends one early, and is answered at once by
{"id", "error"}. Both interfaces of verifiers are supported: `load_environment` (up to 0.1.14), and since 0.4 the task
sets of `verifiers.v1`.
"""

import asyncio
import functools
import itertools
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TextIO

MODEL = "policy"
MOST_CHARACTERS = 1000
"""Characters of an error that are reported."""


class LoadedEnvironment:
    """An environment of verifiers up to 0.1.14."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        """Load the environment; the arguments are those of its `load_environment`."""
        import verifiers

        self._environment = verifiers.load_environment(name, **arguments)

    def rows(self, limit: int | None) -> Iterator[dict[str, Any]]:
        kept = ("prompt", "answer", "info", "example_id", "task")
        for row in itertools.islice(self._environment.get_dataset(), limit):
            yield {key: value for key, value in row.items() if key in kept}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        yield

    async def play(self, task: dict[str, Any], base_url: str, key_variable: str) -> dict[str, Any]:
        from verifiers.types import ClientConfig

        client = ClientConfig(api_key_var=key_variable, api_base_url=base_url, max_retries=0)
        output = await self._environment.run_rollout(task, client, MODEL, {})
        if output.get("error") and not output.get("is_truncated"):
            return {"error": str(output["error"])}
        return {"reward": output["reward"], "metrics": output.get("metrics") or {}}


class TasksetEnvironment:
    """A task set of verifiers 0.4, with the environment that plays it."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        """Load the task set of this name; the arguments are the keys of verifiers' `[env]`."""
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config

        taskset = {**arguments.get("taskset", {}), "id": name}
        self._environment = load_environment(resolve_env_config({**arguments, "taskset": taskset}))
        self._task_type = type(self._environment.taskset).task_type()

    def rows(self, limit: int | None) -> Iterator[dict[str, Any]]:
        taskset = self._environment.taskset
        if limit is None and not taskset.bounded:
            raise SystemExit("the task set is infinite: give --limit")
        for task in itertools.islice(taskset, limit):
            data = task.data.model_dump(mode="json")
            yield {"prompt": shown_prompt(data), "example_id": data["idx"], "info": data}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self._environment.serving():
            yield

    async def play(self, task: dict[str, Any], base_url: str, key_variable: str) -> dict[str, Any]:
        from verifiers.v1 import EvalClientConfig, ModelContext, SamplingConfig

        data = self._task_type.data_type().model_validate(task["info"])
        played = self._task_type(data, self._environment.config.taskset.task)
        client = EvalClientConfig(base_url=base_url, api_key_var=key_variable)
        (slot,) = self._environment.slots(played)
        context = ModelContext(client=client, model=MODEL, sampling=SamplingConfig())
        return reported(await self._environment.run_slot(slot, context))


def shown_prompt(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The prompt of a task as messages of text; verifiers itself begins the conversation from the whole task."""
    prompt = data["prompt"]
    if prompt is None:  # the environment speaks first
        prompt = data["name"] or data["id"] or str(data["idx"])
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if data["system_prompt"]:
        messages = [{"role": "system", "content": data["system_prompt"]}, *messages]
    return [{"role": message["role"], "content": text_of(message["content"])} for message in messages]


def text_of(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content)


def reported(finished: Any) -> dict[str, Any]:
    """The report of an episode of verifiers 0.4."""
    played = [trace for trace in finished.traces if trace.agent.trainable]
    if not finished.ok:
        errors = [*finished.errors, *(error for trace in finished.traces for error in trace.errors)]
        said = f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode failed without an error"
        return {"error": said}
    if len(played) != 1:
        return {"error": f"{len(played)} agents played the policy, but only one agent can be trained"}
    (trace,) = played
    figures = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    figures |= {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "metrics": figures}


def main(name: str, arguments: str, mode: str, limit: str = "") -> None:
    wire = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of the environment's own code must not mix with the answers
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != own]  # some of its files have the names of frameworks
    import verifiers

    interface = LoadedEnvironment if hasattr(verifiers, "load_environment") else TasksetEnvironment
    environment = interface(name, json.loads(arguments))
    if mode == "rows":
        for row in environment.rows(int(limit) if limit else None):
            write(wire, row)
    else:
        asyncio.run(serve(environment, wire))


def write(wire: TextIO, value: dict[str, Any]) -> None:
    wire.write(json.dumps(value, default=str) + "\n")


async def serve(environment: LoadedEnvironment | TasksetEnvironment, wire: TextIO) -> None:
    """Play trajectories until standard input ends."""
    loop = asyncio.get_running_loop()
    running: dict[int, asyncio.Task[None]] = {}
    async with environment.serving():
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            if "cancel" in asked:
                if asked["cancel"] in running:
                    running[asked["cancel"]].cancel()
                write(wire, {"id": asked["cancel"], "error": "cancelled"})
                continue
            number = asked["id"]
            running[number] = task = asyncio.create_task(answer(environment, asked, wire))
            task.add_done_callback(functools.partial(forget, running, number))


def forget(running: dict[int, "asyncio.Task[None]"], number: int, _: object) -> None:
    del running[number]


async def answer(environment: LoadedEnvironment | TasksetEnvironment, asked: dict[str, Any], wire: TextIO) -> None:
    """Play one trajectory and write its result; nothing if it is cancelled."""
    try:
        with key_in_environment(asked) as variable:
            report = await environment.play(asked["task"], asked["base_url"], variable)
    except Exception as error:  # noqa: BLE001  whatever the environment raises, its trajectory has failed
        report = {"error": f"{type(error).__name__}: {error}"}
    write(wire, {"id": asked["id"], **readable(report)})


def readable(report: dict[str, Any]) -> dict[str, Any]:
    """The report of a trajectory in the form that the other side reads, whatever the environment put into it."""
    given, error = report.get("reward"), report.get("error")
    reward = finite(given)
    if error is None and given is not None and reward is None:
        error = f"the reward is {given!r}, which is not a finite number"
    if error is not None:
        return {"error": str(error)[:MOST_CHARACTERS].encode("utf-8", "replace").decode()}
    metrics = {str(name): finite(value) for name, value in (report.get("metrics") or {}).items()}
    return {"reward": reward, "metrics": {name: value for name, value in metrics.items() if value is not None}}


def finite(value: Any) -> "float | None":
    """The value as a number, also one of numpy or torch; None if it is none, or not a finite one."""
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@contextmanager
def key_in_environment(asked: dict[str, Any]) -> Iterator[str]:
    """Name of an environment variable that holds a trajectory's key; verifiers reads keys only from variables."""
    variable = f"VERL_PIVOT_KEY_{asked['id']}"
    os.environ[variable] = asked["api_key"]
    try:
        yield variable
    finally:
        del os.environ[variable]


if __name__ == "__main__":
    main(*sys.argv[1:])
