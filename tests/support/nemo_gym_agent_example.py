"""NeMo Gym's simple agent, model server and counter: `python nemo_gym_agent_example.py PORT POLICY_PORT`."""

import asyncio
import socket
import sys
from typing import Any

import uvicorn  # type: ignore[import-not-found,unused-ignore]
from nemo_gym.config_types import BaseServerConfig  # type: ignore[import-not-found]
from nemo_gym.server_utils import (  # type: ignore[import-not-found]
    GlobalAIOHTTPAsyncClientConfig,
    ServerClient,
    set_global_aiohttp_client,
)
from omegaconf import OmegaConf
from resources_servers.example_session_state_mgmt.app import (  # type: ignore[import-not-found]
    StatefulCounterResourcesServer,
)
from responses_api_agents.simple_agent.app import SimpleAgent  # type: ignore[import-not-found]
from responses_api_models.openai_model.app import SimpleModelServer  # type: ignore[import-not-found]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


HOST, PORT, POLICY_PORT = "127.0.0.1", int(sys.argv[1]), int(sys.argv[2])
SERVERS: dict[str, Any] = {
    "counter": {"resources_servers": {"counter": {"port": free_port()}}},
    "policy_model": {
        "responses_api_models": {
            "openai_model": {
                "port": free_port(),
                "openai_base_url": f"http://{HOST}:{POLICY_PORT}/v1",
                "openai_api_key": "any",
                "openai_model": "policy",
            }
        }
    },
    "agent": {
        "responses_api_agents": {
            "simple_agent": {
                "port": PORT,
                "resources_server": {"type": "resources_servers", "name": "counter"},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
                "max_steps": 6,
            }
        }
    },
}
CLASSES = {"counter": StatefulCounterResourcesServer, "policy_model": SimpleModelServer, "agent": SimpleAgent}


async def main() -> None:
    for kinds in SERVERS.values():
        for options in kinds.values():
            for each in options.values():
                each.update(host=HOST, entrypoint="app.py")
    client = ServerClient(
        head_server_config=BaseServerConfig(host=HOST, port=PORT), global_config_dict=OmegaConf.create(SERVERS)
    )
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    servers = []
    for name, kinds in SERVERS.items():
        ((options,),) = (each.values() for each in kinds.values())
        made = CLASSES[name]
        config = made.model_fields["config"].annotation(name=name, **options)
        app = made(config=config, server_client=client).setup_webserver()
        servers.append(uvicorn.Server(uvicorn.Config(app, host=HOST, port=options["port"], log_level="warning")))
    await asyncio.gather(*(server.serve() for server in servers))


if __name__ == "__main__":
    asyncio.run(main())
