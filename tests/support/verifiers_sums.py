"""A task set of verifiers 0.4 with a harness of its own, for the interpreter that has it."""

from collections.abc import Iterator
from typing import Any

import httpx
import verifiers.v1 as vf  # type: ignore[import-not-found,unused-ignore]
from verifiers.v1.runtimes import ProgramResult  # type: ignore[import-not-found,unused-ignore]


class SumData(vf.TaskData):  # type: ignore[misc]
    answer: int


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    @vf.reward(weight=2.0)  # type: ignore[untyped-decorator,unused-ignore]
    async def right(self, trace: Any) -> float:
        return float(str(self.data.answer) in trace.last_reply)

    @vf.metric  # type: ignore[untyped-decorator,unused-ignore]
    async def level(self, trace: Any) -> float:
        return float(self.data.answer - 3)


class SumConfig(vf.TasksetConfig):  # type: ignore[misc]
    num: int = 2
    endless: bool = False


class SumTaskset(vf.Taskset[SumTask, SumConfig]):  # type: ignore[misc]
    @property
    def bounded(self) -> bool:
        return not self.config.endless

    def load(self) -> Iterator[SumTask]:
        for number in range(self.config.num):
            data = SumData(prompt=f"Add {number} and 3.", system_prompt="Be brief.", answer=number + 3)
            yield SumTask(data, self.config.task)


class SumHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Harness that asks the policy twice."""

    NEEDS_CONTAINER = EXECUTES_CODE = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> Any:
        print("noise")
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            for _ in range(2):
                body, headers = {"model": ctx.model, "messages": messages}, {"Authorization": f"Bearer {secret}"}
                answer = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if answer.status_code != 200:
                    return ProgramResult(1, "", answer.text)
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "Are you sure?"}]
        return ProgramResult(0, "", "")


__all__ = ["SumHarness", "SumTaskset"]
