"""`verl-pivot sandbox unpack`: the archive of an image -> a folder for `sandbox serve --roots`."""

from pathlib import Path
from typing import Annotated

import typer


def unpack_command(
    archive: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGE.tar", help="Image archive from `docker save`, or skopeo's docker-archive: or oci-archive:."
        ),
    ],
    root: Annotated[Path, typer.Argument(help="New folder to write, within the folder of `sandbox serve --roots`.")],
    max_gib: Annotated[float, typer.Option(min=0.001, help="Maximum size of the unpacked image in GiB.")] = 32.0,
    user: Annotated[
        str | None,
        typer.Option(help="If root unpacks: give the files to this user instead of nobody, as for `sandbox serve`."),
    ] = None,
) -> None:
    """Unpack an image into a folder that can be a program's root.

    No program of the image is run. An archive is refused, and leaves nothing behind, if it leads out of the folder,
    holds device nodes outside of /dev, is damaged, or is too large.

    Example:

      docker save python:3.12-slim -o py312.tar && verl-pivot sandbox unpack py312.tar /data/roots/py312
    """
    from verl_pivot.errors import ConfigError
    from verl_pivot.sandbox.bubblewrap.privileges import DEFAULT_USER, account_of, is_root
    from verl_pivot.sandbox.execution import check_root_name
    from verl_pivot.sandbox.image_unpacking import unpack_image

    check_root_name(root.name)
    if user is not None and not is_root():
        raise ConfigError("--user needs root, which alone can change the owner of files; leave it out")
    account = account_of(user or DEFAULT_USER) if is_root() else None
    owner = None if account is None else (account.pw_uid, account.pw_gid)
    found = unpack_image(archive, root, max_bytes=int(max_gib * 1024**3), owner=owner)
    typer.echo(f"{root}: {found.num_entries} entries of {found.num_layers} layers, {found.num_bytes / 1024**2:.0f} MiB")
    if found.num_devices:
        typer.echo(f"{found.num_devices} device nodes in /dev were left out: each sandbox has its own /dev")
