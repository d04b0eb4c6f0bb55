"""`verl-pivot sandbox start | status | stop` with --ray: act on every node of a Ray cluster, and print a table."""

import secrets
import time
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table

from verl_pivot.commands.tables import table_console
from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.cluster import ray_supervisor
from verl_pivot.sandbox.cluster.placement import Phase, ServicePlace
from verl_pivot.sandbox.nodes import NAME_VARIABLE
from verl_pivot.sandbox.ray_discovery import DEFAULT_NAME
from verl_pivot.workers.ray_connection import connected

POLL_SECONDS = 0.5
MAX_FAILURES = 2
"""Failed starts of a node's service after which the command stops waiting for it; the supervisor keeps trying."""


def start(address: str, name: str, arguments: Sequence[str], wait_seconds: float) -> None:
    """Start the sandbox; return when every node serves.

    Raises:
        ConfigError: If there is no cluster, or the sandbox runs with other options.
        SandboxError: If a node does not serve in time, or failed to start.
    """
    with connected(address):
        ray_supervisor.start_supervisor(name, arguments, secrets.token_urlsafe(24))
        places = _wait(name, time.monotonic() + wait_seconds)
    _show(places)
    others = [place for place in places if place.phase is not Phase.SERVING]
    if others or not places:
        raise SandboxError(_unfinished(name, others, len(places)))
    named = "" if name == DEFAULT_NAME else f" with {NAME_VARIABLE}={name}"
    typer.echo(f"Sandbox() in any process of this cluster{named} finds these services by itself.")


def show(address: str, name: str) -> None:
    """Print the state of every node.

    Raises:
        SandboxError: If a node does not serve.
    """
    with connected(address):
        places = ray_supervisor.places(name)
    _show(places)
    others = [place for place in places if place.phase is not Phase.SERVING]
    if others or not places:
        raise SandboxError(_unfinished(name, others, len(places)))


def stop(address: str, name: str) -> None:
    """Stop the sandbox; return when all services have ended."""
    with connected(address), Console(stderr=True).status("waiting for running programs to end"):
        num_places = len(ray_supervisor.places(name))
        ray_supervisor.stop_supervisor(name)
    typer.echo(f"sandbox {name!r} has ended on {num_places} nodes")


def _wait(name: str, until: float) -> list[ServicePlace]:
    """State of all services, as soon as each is ready or has failed, but at the latest at the time `until`."""
    with Console(stderr=True).status("starting") as status:
        while True:
            places = ray_supervisor.places(name)
            num_serving = sum(place.phase is Phase.SERVING for place in places)
            status.update(f"{num_serving} of {len(places)} nodes serve")
            if time.monotonic() > until or (places and all(map(_is_settled, places))):
                return places
            time.sleep(POLL_SECONDS)


def _is_settled(place: ServicePlace) -> bool:
    return place.phase is Phase.SERVING or place.num_failures >= MAX_FAILURES


def _show(places: Sequence[ServicePlace]) -> None:
    table = Table()
    for header in ("node", "url", "tier", "state"):
        table.add_column(header, no_wrap=True)
    for header in ("slots", "queued", "running"):
        table.add_column(header, justify="right")
    for place in sorted(places, key=lambda place: (place.address, place.node_id)):
        table.add_row(*_row(place))
    table_console().print(table)
    for place in places:
        if place.problem:
            problem = " ".join(place.problem.split())
            typer.echo(f"{place.node_id[:8]}, {place.num_failures} failures in a row, the latest problem: {problem}")


def _row(place: ServicePlace) -> tuple[str, ...]:
    health = place.health
    if health is None:
        return place.node_id[:8], place.address, "", place.phase, "", "", ""
    counts = (str(health.slots), str(health.queued), str(health.in_flight))
    return place.node_id[:8], place.url, health.tier, place.phase, *counts


def _unfinished(name: str, others: Sequence[ServicePlace], num_places: int) -> str:
    if not num_places:
        return f"the supervisor of sandbox {name!r} has not found any node yet: try again in a moment"
    nodes = "; ".join(f"{place.node_id[:8]} at {place.address} is {place.phase}" for place in others)
    return (
        f"{num_places - len(others)} of {num_places} nodes serve; {nodes}; correct the problems that are printed above "
        "(services are started again from time to time, and at once by another `start`), or give up with "
        f"`verl-pivot sandbox stop --ray --name {name}`"
    )
