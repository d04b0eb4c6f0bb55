"""Writes the pages that come from the code, and llms.txt: `python docs/reference.py`. Tests compare them."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "verl_pivot"
FOLDERS = {
    "": "What every stage shares, and the entry points for verl, Hydra and the shell",
    "commands": "One file per command of `verl-pivot`",
    "diagnosis": "What `verl-pivot doctor` looks at",
    "smoke": "Two steps of the stock trainer with a tiny policy, for `verl-pivot smoke`",
    "data": "Files, JSON, messages, turns, trajectories and the rows that verl reads",
    "formats": "Rows of other formats -> Trajectory",
    "quality": "Filters of trajectories",
    "engines": "Engines that sample actions outside verl",
    "profiling": "Turns -> profiles: K sampled actions per turn, scored",
    "selection": "Profiles -> pivots",
    "launch_checks": "A launch's config -> one sentence about what would fail, before Ray starts",
    "planning": "Trajectories and a model -> a plan: commands, pivots and GPU hours to expect, problems",
    "exports": "Files for other readers, and checkpoints for the next stage",
    "verifiers": "An action and the expert's -> a verdict; one file per verifier",
    "verifiers/runners": "Programs that run inside the sandbox for a verifier",
    "tools": "What a policy can call in a rollout",
    "environments": "Environments of other frameworks, which the policy steps by calling tools",
    "rollout": "verl's agent loops: one turn, or many with tools",
    "playing": "Conversations of a model or a person with tools, without a trainer",
    "synthesis": "Tasks, trajectories and writers -> new ones, made and checked",
    "advantages": "Returns of steps -> advantages, and the estimator that verl calls",
    "rewards": "Verdict -> reward, for verl; facts of steps -> returns",
    "objective": "The policy loss of PivotRL, and the settings of verl that `pivot.objective` stands for",
    "resampling": "Choice of the rollouts that the update sees",
    "runs": "Files of a training -> its metrics, dumps and settings, and how its tool use, length and accuracy develop",
    "inspect": "Files of a training -> the page of `verl-pivot inspect`, and the file of `verl-pivot report`",
    "routing": "Choice of the engine that serves a request",
    "routing/simulator": "A step of rollouts on simulated engines",
    "sandbox": "The client: programs and cells in, results out",
    "sandbox/service": "The process that serves a node over HTTP",
    "sandbox/egress": "The process through which programs reach listed hosts",
    "sandbox/lane": "The process inside bubblewrap that runs many programs; the standard library alone",
    "sandbox/in_session": "What a snapshot runs inside a session; the standard library alone",
    "sandbox/bubblewrap": "Command lines of bubblewrap, and what the machine allows",
    "sandbox/cluster": "Supervision of one service on each node of a cluster",
    "sandbox/bench": "Measurements of `verl-pivot sandbox bench`",
    "sandbox/audit": "Attacks of `verl-pivot sandbox audit`",
    "browser": "A Chromium in bubblewrap, and pages whose elements have numbers",
    "templates": "Files that `verl-pivot init` writes, under names that it replaces",
    "local": "What the stock verl and SGLang need on a machine without a GPU",
    "local/shims": "Modules that every process of `+local=cpu` loads",
    "local/shims/without_accelerator/sgl_kernel": "Stand-in for a package that has no CPU build",
}


def first_line(path: Path) -> str:
    """The first line of a module's docstring.

    Raises:
        ValueError: If the module has none.
    """
    text = ast.get_docstring(ast.parse(path.read_text()))
    if not text:
        raise ValueError(f"{path} needs a docstring whose first line says what the file gives")
    return text.splitlines()[0]


def file_list() -> str:
    """The text of docs/files.md."""
    lines = [
        "# Files",
        "",
        "Every module of the package with its first line; written by `python docs/reference.py`. What the folders are",
        "for, and which may import which, is in [Architecture](architecture.md).",
    ]
    for folder, about in FOLDERS.items():
        modules = [path for path in sorted((PACKAGE / folder).glob("*.py")) if path.name != "__init__.py"]
        if not modules:
            continue
        lines += [
            "",
            f"## `verl_pivot/{folder}{'/' if folder else ''}`",
            "",
            f"{about}.",
            "",
            "| file | gives |",
            "|---|---|",
        ]
        lines += [f"| `{path.name}` | {first_line(path).replace('|', chr(92) + '|')} |" for path in modules]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import api_reference
    import cli_reference
    import compatibility_reference
    import llms
    import options_reference
    import settings_reference
    import verl_settings

    modules = (
        api_reference,
        cli_reference,
        compatibility_reference,
        options_reference,
        settings_reference,
        verl_settings,
    )
    for module in modules:
        module.write()
    (ROOT / "docs" / "files.md").write_text(file_list())
    llms.write()
