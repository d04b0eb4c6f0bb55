"""Agent server that answers over HTTP as NeMo Gym's simple agent does, with its own counter; it may be told to fail."""

import json
from typing import Any

import aiohttp
from aiohttp import web


class Agent:
    """Plays rows of the counter. `faults` replaces parts of its answers."""

    def __init__(self, policy_port: int, **faults: Any) -> None:
        self.policy = f"http://127.0.0.1:{policy_port}/v1/responses"
        self.faults = faults

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_post("/run", self._run)
        return app

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response(self.faults.get("openapi", {"paths": {"/run": {}, "/v1/responses": {}}}))

    async def _run(self, request: web.Request) -> web.Response:
        row = await request.json()
        params, count = row["responses_create_params"], row["initial_count"]
        if "metadata" in self.faults:
            params = {**params, "metadata": self.faults["metadata"]}
        output: list[Any] = []
        while True:
            try:
                response = await self._asked({**params, "input": params["input"] + output})
            except web.HTTPInternalServerError:
                if self.faults.get("dies"):
                    assert request.transport is not None
                    request.transport.abort()
                raise
            output += response["output"]
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            if not calls:
                break
            for call in calls:
                count += json.loads(call["arguments"]).get("count", 0)
                text = json.dumps({"count": count})
                output.append({"type": "function_call_output", "call_id": call["call_id"], "output": text})
        told = {**row, "response": {**response, "output": output}, "reward": float(count == row["expected_count"])}
        return web.json_response(
            {**told, "mask_sample": False, "num_items": len(output), **self.faults.get("told", {})}
        )

    async def _asked(self, body: Any) -> Any:
        async with aiohttp.ClientSession() as http, http.post(self.policy, json=body) as answer:
            if answer.status != 200:
                raise web.HTTPInternalServerError(text=await answer.text())
            return await answer.json()
