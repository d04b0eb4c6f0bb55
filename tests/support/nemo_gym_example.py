"""NeMo Gym's own example server with a counter, for the interpreter that has it: `python nemo_gym_example.py PORT`."""

import sys

import uvicorn  # type: ignore[import-not-found,unused-ignore]
from nemo_gym.config_types import BaseServerConfig  # type: ignore[import-not-found]
from nemo_gym.server_utils import ServerClient  # type: ignore[import-not-found]
from omegaconf import OmegaConf
from resources_servers.example_session_state_mgmt.app import (  # type: ignore[import-not-found]
    StatefulCounterResourcesServer,
    StatefulCounterResourcesServerConfig,
)

if __name__ == "__main__":
    port = int(sys.argv[1])
    config = StatefulCounterResourcesServerConfig(host="127.0.0.1", port=port, entrypoint="app.py", name="counter")
    head = BaseServerConfig(host="127.0.0.1", port=port)
    client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create({}))
    app = StatefulCounterResourcesServer(config=config, server_client=client).setup_webserver()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
