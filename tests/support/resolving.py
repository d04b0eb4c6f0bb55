"""Versions that a package index gives for a pip command, and environments that hold the metadata of packages alone."""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT

PAGES = ("README.md", "docs/installing.md", "docs/sandbox.md", "docker/Dockerfile")
PLATFORM = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34")
"""Python and platform of verl's wheels for GPUs; SGLang's kernels need glibc 2.34."""


def pip_commands() -> list[str]:
    """Arguments of each `pip install` of the pages that does not compile a package or clone a repository."""
    found = {
        command.strip()
        for page in PAGES
        for command in re.findall(r"\bpip install ([^`\n#&<>]+)", (ROOT / page).read_text())
    }
    return sorted(command for command in found if not re.search(r"--no-build-isolation|git\+", command))


def resolved(arguments: Sequence[str], wheel: Path) -> dict[str, str]:
    """{package: version} that a pip command installs, by uv, which reads metadata and downloads no wheel.

    Args:
        arguments: Arguments of `pip install`; `.` is this package.
        wheel: Wheel of this package.
    """
    flags, files, lines = [], [], []
    words = iter(arguments)
    for word in words:
        if word in ("-r", "--requirement"):
            files.append(next(words))
        elif word == "--override":
            flags += [word, next(words)]
        elif word.startswith("-"):
            flags.append(word)
        else:
            lines.append(re.sub(r"^\.(\[.*\])?$", rf"verl-pivot\1 @ {wheel.as_uri()}", word))
    return compiled([*flags, *files, *(["-"] if lines else [])], "\n".join(lines))


def compiled(arguments: Sequence[str], stdin: str = "") -> dict[str, str]:
    """{package: version} that `uv pip compile` gives; skips the test where the package index cannot be reached."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", *PLATFORM]
    index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if "PIP_INDEX_URL" in os.environ else {}
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | index,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if "Failed to fetch" in done.stderr or "error sending request" in done.stderr:
        pytest.skip(f"the package index cannot be reached: {done.stderr.splitlines()[-1].strip()}")
    assert done.returncode == 0, done.stderr
    return pins(done.stdout)


def pins(text: str) -> dict[str, str]:
    """{package: version} of the lines `name==version`."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", text, re.MULTILINE))


def with_requirements(name: str, known: set[str] | None = None) -> Iterator[Distribution]:
    """An installed distribution and all of its requirements that are installed."""
    known = set() if known is None else known
    if name.lower().replace("_", "-") in known:
        return
    known.add(name.lower().replace("_", "-"))
    try:
        found = distribution(name)
    except ModuleNotFoundError:  # such as wandb, which the pinned environment for the CPU leaves out
        return
    yield found
    for line in found.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from with_requirements(requirement.name, known)


def environment_of(distributions: Iterable[Distribution], folder: Path) -> Path:
    """Make an environment in which pip finds only copied metadata of distributions; returns its interpreter."""
    venv.create(folder, with_pip=False)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    for dist in distributions:
        copy = site_packages / f"{dist.name.replace('-', '_')}-{dist.version}.dist-info"
        copy.mkdir()
        (copy / "METADATA").write_text(dist.read_text("METADATA") or "")
    return folder / "bin" / "python"
