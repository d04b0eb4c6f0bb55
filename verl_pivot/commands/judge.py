"""`verl-pivot judge serve`: a model -> an OpenAI-compatible endpoint of SGLang that serves it as a judge."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

judge_app = typer.Typer(help="Serve a model that judges turns of trajectories.", no_args_is_help=True)


@judge_app.callback()
def judge() -> None:
    """Serve a model that judges turns of trajectories."""


@judge_app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Folder of the checkpoint, or its Hugging Face name.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the endpoint.")] = 30000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    name: Annotated[
        str | None, typer.Option(help="Name of the model at the endpoint; by default the name of its folder.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the server.")] = 0,
) -> None:
    """Serve a model with SGLang until Ctrl-C, on a GPU or on the CPU.

    Flags of SGLang's launch_server may follow, and override those of this command.

    \b
    Examples:
    verl-pivot judge serve my-judge --host 0.0.0.0
    verl-pivot judge serve my-judge --port 30001 --tp-size 2
    """
    from verl_pivot.engines.server import server_environment, server_flags
    from verl_pivot.errors import ConfigError
    from verl_pivot.local.environment import has_accelerator

    if find_spec("sglang") is None:
        raise ConfigError("SGLang is not installed: see docs/installing.md, or serve the model with any other server")
    on_cpu = not has_accelerator()
    served = name or Path(model).name
    flags = server_flags(model, port=port, seed=seed, on_cpu=on_cpu)
    chosen = ("--host", host, "--served-model-name", served, *context.args)
    form = " pivot.process.answer_format=text" if on_cpu else ""
    shown = os.uname().nodename if host == "0.0.0.0" else host
    typer.echo(
        f"Once SGLang says that it is ready, add to a launch with +method=ppr:\n"
        f"    pivot.process.base_url=http://{shown}:{port}/v1 pivot.process.model={served}{form}"
    )
    sys.stdout.flush()
    environment = server_environment(os.environ, model, on_cpu=on_cpu)
    os.execve(  # so that Ctrl-C and signals reach SGLang itself
        sys.executable, [sys.executable, "-m", "sglang.launch_server", *flags, *chosen], environment
    )
