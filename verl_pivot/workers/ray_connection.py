"""Address of a Ray cluster -> a process that is connected to it, for commands with --ray; and why an actor is lost."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray._private.services import canonicalize_bootstrap_address
from ray.exceptions import RayError

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.ray_discovery import NAMESPACE

CONNECT_SECONDS = 5.0


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to an existing Ray cluster for the length of a `with` block.

    Raises:
        ConfigError: If there is no cluster at the address.
    """
    if address == "local":
        raise ConfigError("--address local would start a cluster that ends with this command; use auto, or host:port")
    try:
        refuse_unreachable(address)
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise ConfigError(
            f"no Ray cluster at {address!r} ({error}): start one with `ray start --head` or leave out --ray"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def refuse_unreachable(address: str) -> None:
    """Raise ConnectionError if nothing answers at the address: ray.init (2.60) would try for minutes."""
    if address.startswith("ray://"):
        return
    found = canonicalize_bootstrap_address(address)
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"{found} does not answer: {error}") from error


def loss_reason(error: RayError) -> str:
    """First line of Ray's message about a lost actor; long explanations follow it."""
    return str(error).strip().partition("\n")[0]
