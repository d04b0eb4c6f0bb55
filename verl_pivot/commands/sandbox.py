"""`verl-pivot sandbox serve | start | status | stop`: the sandbox service of one node, or one on each node."""

import json
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.options import Address
from verl_pivot.commands.sandbox_audit import audit_command
from verl_pivot.commands.sandbox_bench import bench_command
from verl_pivot.commands.sandbox_run import run_command
from verl_pivot.commands.sandbox_unpack import unpack_command
from verl_pivot.errors import ConfigError, SandboxError
from verl_pivot.sandbox.nodes import TOKEN_VARIABLE, URLS_VARIABLE

if TYPE_CHECKING:
    from verl_pivot.sandbox.service.backend import BackendSettings
    from verl_pivot.sandbox.service.settings import ServiceSettings

HANDED_TOKEN = "VERL_PIVOT_SANDBOX_HANDED_TOKEN"
"""Environment variable with the descriptor of a file that holds the token. A service that root started uses it to pass
the token on when it restarts as an ordinary user. The variable does not hold the token itself, since other processes of
that user can read the environment of a process."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that this process gets when its parent ends."""

sandbox_app = typer.Typer(
    help="Run model-written programs in isolation, in a service on each node that is reached by its URL and a token.",
    no_args_is_help=True,
)
Urls = Annotated[
    list[str] | None,
    typer.Option("--url", help=f"URL of a service; repeatable. Default: the variable {URLS_VARIABLE}."),
]
OnRay = Annotated[bool, typer.Option("--ray", help="Act on the services of all nodes of a Ray cluster.")]
Name = Annotated[str, typer.Option(help="With --ray: name of the sandbox, if the cluster has several.")]
TokenFile = Annotated[
    Path | None, typer.Option(help=f"File that holds the token. Default: the variable {TOKEN_VARIABLE}.")
]

sandbox_app.command("audit")(audit_command)
sandbox_app.command("bench")(bench_command)
sandbox_app.command("run")(run_command)
sandbox_app.command("unpack")(unpack_command)


@sandbox_app.command("serve")
def serve_command(
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every interface.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    token_file: TokenFile = None,
    backend: Annotated[
        str,
        typer.Option(help="How programs are started: zygote (fast Python), bwrap_exec, or module:Class of your own."),
    ] = "zygote",
    lanes: Annotated[
        int | None, typer.Option(min=1, help="Number of lanes, processes with many programs; by default one per core.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="Programs that may run at once; by default 512 per lane, with bwrap_exec one per core."
        ),
    ] = None,
    min_tier: Annotated[
        str,
        typer.Option(
            help="Weakest isolation that is accepted: T1 (strongest), T2 or T3. `verl-pivot doctor` shows this node's."
        ),
    ] = "T3",
    languages: Annotated[Path | None, typer.Option(help="YAML file of more languages.")] = None,
    roots: Annotated[
        Path | None,
        typer.Option(help="Folder of unpacked images; programs and sessions choose one by the name of its folder."),
    ] = None,
    preload: Annotated[
        str,
        typer.Option(help="Python packages, separated by commas, that are imported in advance if they are installed."),
    ] = "numpy,sympy,math_verify,duckdb",
    memory_mib: Annotated[
        int | None,
        typer.Option(min=256, help="Memory in MiB for all programs together; by default half of the machine's memory."),
    ] = None,
    shared_network: Annotated[
        bool,
        typer.Option(
            "--shared-network",
            help="One network namespace for all programs of a lane, which saves 200 KiB each and lets them see each "
            "other's ports; no interface is up in it either.",
        ),
    ] = False,
    egress: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Host that programs with the network `proxy` reach, such as https://pypi.org, https://*.example.org "
            "or http://mirror:8080=10.0.0.5; repeatable. By default they reach no host.",
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="If root starts the service: run as this user instead of nobody.")
    ] = None,
    node: Annotated[str, typer.Option(help="Name of this node in results; by default host:port.")] = "",
    max_queued: Annotated[int, typer.Option(min=1, help="Maximum number of waiting requests.")] = 8192,
    max_mib: Annotated[
        int, typer.Option(min=64, help="Maximum size in MiB of all held requests and unread results.")
    ] = 256,
    max_sessions: Annotated[int, typer.Option(min=0, help="Maximum number of open sessions.")] = 1024,
    session_idle_seconds: Annotated[
        float, typer.Option(min=1.0, help="Seconds until an unused session is closed.")
    ] = 3600.0,
    session_cpu_seconds: Annotated[
        int, typer.Option(min=1, help="CPU seconds of a session over all its cells; each cell has its own limit, too.")
    ] = 3600,
    drain_seconds: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for running programs when the service stops.")
    ] = 10.0,
    ready_file: Annotated[
        Path | None, typer.Option(help="File to which the line of JSON is also written when the service is ready.")
    ] = None,
    die_with_parent: Annotated[
        int | None,
        typer.Option(metavar="PID", help="Process id of the parent process; the service ends when the parent ends."),
    ] = None,
) -> None:
    """Run the sandbox service of this node until SIGTERM. When it is ready it prints a line of JSON: url, pid and tier.

    Example: verl-pivot sandbox serve --host 0.0.0.0 --port 8650 --token-file token.txt
    """
    from verl_pivot.sandbox.bubblewrap.privileges import drop_root
    from verl_pivot.sandbox.service.backend import BackendSettings
    from verl_pivot.sandbox.service.settings import ServiceLimits, ServiceSettings

    if os.geteuid() == 0:
        _hand_on(read_token(token_file))  # the ordinary user may have no right to read the file
    drop_root(user, with_pods=True)
    if die_with_parent is not None:
        _die_with(die_with_parent)
    settings = ServiceSettings(
        token=_handed_token() or read_token(token_file),
        host=host,
        port=port,
        node=node,
        backend_name=backend,
        limits=ServiceLimits(max_queued=max_queued, max_bytes=max_mib * 1024**2),
        max_sessions=max_sessions,
        session_idle_seconds=session_idle_seconds,
        drain_seconds=drain_seconds,
    )
    backend_settings = BackendSettings(
        backend=backend,
        num_lanes=lanes,
        num_slots=slots,
        min_tier=min_tier,
        preload=tuple(name.strip() for name in preload.split(",") if name.strip()),
        memory_bytes=None if memory_mib is None else memory_mib * 1024**2,
        shares_network=shared_network,
        egress=tuple(egress or ()),
        session_cpu_seconds=session_cpu_seconds,
        roots_folder=roots,
        languages_file=languages,
    )
    from verl_pivot.extras import extra

    with extra("sandbox"):
        import uvloop

    uvloop.run(_serve(settings, backend_settings, ready_file))


async def _serve(settings: "ServiceSettings", backend_settings: "BackendSettings", ready_file: Path | None) -> None:
    import asyncio

    from verl_pivot.sandbox.service.backend import make_backend
    from verl_pivot.sandbox.service.service import Service

    _allow_many_files()
    backend = make_backend(backend_settings)
    service = Service(settings, backend)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, service.stop_requested.set)
    await service.start()
    try:
        ready = json.dumps({"url": service.url, "pid": os.getpid(), "tier": backend.tier})
        if ready_file is not None:
            _write(ready_file, ready)
        typer.echo(ready)
        await service.stop_requested.wait()
    finally:
        await service.stop()


def _allow_many_files() -> None:
    """Raise the limit on open files: connections, pipes and sessions together exceed the usual soft limit of 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _write(ready_file: Path, ready: str) -> None:
    """Write the file atomically, so that no process reads half of it."""
    partial = ready_file.with_suffix(".partial")
    try:
        partial.write_text(ready + "\n")
        partial.rename(ready_file)
    except OSError as error:
        message = f"--ready-file {ready_file} cannot be written by uid {os.geteuid()}: {error.strerror}"
        raise ConfigError(f"{message}; choose another folder") from error


def _die_with(parent: int) -> None:
    """Ask the kernel to send SIGTERM to this process when its parent ends.

    Raises:
        ConfigError: If the parent has ended already, or has another process id.
    """
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise ConfigError(
            f"--die-with-parent {parent}: the parent has ended, or has another process id; give the id of the "
            "process that starts this one"
        )


def _hand_on(token: str) -> None:
    from verl_pivot.sandbox.lane.fd_passing import sealed_memory_file

    fd = sealed_memory_file(token.encode())
    os.set_inheritable(fd, True)
    os.environ[HANDED_TOKEN] = str(fd)


def _handed_token() -> str:
    """The token that a service started by root has passed on; "" for any other service."""
    handed = os.environ.pop(HANDED_TOKEN, "")
    if not handed:
        return ""
    with open(int(handed), encoding="utf-8") as file:
        file.seek(0)
        return file.read()


def read_token(token_file: Path | None) -> str:
    """The token from a file or the environment, not from an argument, which every user of the machine can read."""
    if token_file is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token:
            raise ConfigError(f"no token: give --token-file, or set {TOKEN_VARIABLE}, to at least 16 characters")
        return token
    try:
        return token_file.read_text().strip()
    except OSError as error:
        raise ConfigError(f"--token-file {token_file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--token-file {token_file} is no text: {error}; write the token into it as text") from error


@sandbox_app.command("start")
def start_command(
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="-- SERVE_OPTIONS", help="More options of `serve`, for every node.")
    ] = None,
    ray: OnRay = False,
    address: Address = "auto",
    name: Name = "default",
    backend: Annotated[str | None, typer.Option(help="Same as for `serve`.")] = None,
    lanes: Annotated[int | None, typer.Option(min=1, help="Lanes per node, same as for `serve`.")] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Slots per node, same as for `serve`.")] = None,
    min_tier: Annotated[str | None, typer.Option(help="Same as for `serve`.")] = None,
    wait_seconds: Annotated[float, typer.Option(min=0.0, help="Seconds to wait until every node serves.")] = 300.0,
) -> None:
    """Keep one service on each node of a Ray cluster, also new ones.

    Example: verl-pivot sandbox start --ray --lanes 8 -- --max-sessions 256
    """
    if not ray:
        raise ConfigError(
            "sandbox start is for a Ray cluster: add --ray; on one machine use `verl-pivot sandbox serve`, or nothing: "
            "a client starts its own service"
        )
    from verl_pivot.commands import sandbox_ray

    given = {"--backend": backend, "--lanes": lanes, "--slots": slots, "--min-tier": min_tier}
    arguments = [word for option, value in given.items() if value is not None for word in (option, str(value))]
    sandbox_ray.start(address, name, [*arguments, *(serve_options or [])], wait_seconds)


@sandbox_app.command("status")
def status_command(url: Urls = None, ray: OnRay = False, address: Address = "auto", name: Name = "default") -> None:
    """Show the health of each service. The exit code is 1 if one does not answer.

    Example: verl-pivot sandbox status --url http://127.0.0.1:8650
    """
    if ray:
        from verl_pivot.commands import sandbox_ray

        sandbox_ray.show(address, name)
        return
    import httpx

    num_failed = 0
    for service in _urls(url):
        try:
            answer = httpx.get(f"{service}/healthz", timeout=5.0, trust_env=False)
            typer.echo(f"{service} {answer.text.strip()}")
            num_failed += answer.status_code != 200
        except httpx.HTTPError as error:
            num_failed += 1
            typer.echo(f"{service} does not answer: {error}; start it with `verl-pivot sandbox serve`", err=True)
    if num_failed:
        raise typer.Exit(1)


@sandbox_app.command("stop")
def stop_command(
    url: Urls = None,
    token_file: TokenFile = None,
    ray: OnRay = False,
    address: Address = "auto",
    name: Name = "default",
) -> None:
    """Stop each service. Running programs get the --drain-seconds of `serve` to end.

    Example: verl-pivot sandbox stop --url http://127.0.0.1:8650 --token-file token.txt
    """
    if ray:
        from verl_pivot.commands import sandbox_ray

        sandbox_ray.stop(address, name)
        return
    import httpx

    headers = {"Authorization": f"Bearer {read_token(token_file)}"}
    for service in _urls(url):
        try:
            answer = httpx.post(f"{service}/v1/stop", headers=headers, content=b"", timeout=5.0, trust_env=False)
        except httpx.HTTPError as error:
            raise SandboxError(f"{service} does not answer: {error}; it may have stopped already") from error
        if answer.status_code != 202:
            raise ConfigError(f"{service} refused to stop ({answer.status_code}); give the token it was started with")
        typer.echo(f"{service} is stopping")


def _urls(given: list[str] | None) -> list[str]:
    listed = given or os.environ.get(URLS_VARIABLE, "").split(",")
    urls = [url.strip().rstrip("/") for url in listed if url.strip()]
    if not urls:
        raise ConfigError(f"no service named: give --url, or set {URLS_VARIABLE}")
    import httpx

    for url in urls:
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"{url} is no URL ({error}); give one such as http://127.0.0.1:8650") from error
    return urls
