"""Tools and verifiers of a launch -> nothing, or one sentence about what its foreign pool of sandboxes cannot do."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from verl_pivot.data.json_values import decode_json, encode_json
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.pool_settings import POOL_VARIABLE, Feature, pool_of_environment

TOOL_NEEDS: Mapping[str, Feature] = {
    "jupyter_code": Feature.SESSIONS,
    "bash": Feature.SESSIONS,
    "sql": Feature.FILES,
}
"""{built-in tool: what it needs of the sandbox beyond single programs}."""
VERIFIER_NEEDS: Mapping[str, Feature] = dict.fromkeys(("math", "shell", "sql", "terminus"), Feature.FILES)
"""{verifier: what it needs of the sandbox beyond single programs}; `code` needs files for some of its options."""
_CODE_NEEDS_FILES = ("asserts", "test_file", "checker")


def check_pool(
    *, tools: Iterable[str] = (), verifiers: Iterable[tuple[str, str]] = (), needs_sessions: bool = False
) -> None:
    """Refuse tools and verifiers that the pool of VERL_PIVOT_SANDBOX_POOL cannot serve.

    Args:
        tools: Names of the built-in tools of the launch.
        verifiers: (name, options as JSON) of each verifier that rows name.
        needs_sessions: Whether rollouts work in a notebook, which is a session.

    Raises:
        ConfigError: If there is such a pool, and it lacks a feature that one of them needs.
    """
    pool = pool_of_environment()
    if pool is None:
        return
    needs: list[tuple[str, Feature | None]] = [("a notebook", Feature.SESSIONS)] if needs_sessions else []
    needs += [(f"tool {name!r}", TOOL_NEEDS.get(name)) for name in tools]
    needs += [
        (f"verifier {part!r}", feature)
        for name, options in verifiers
        for part, feature in _needs_of(name, decode_json(options))
    ]
    for what, feature in needs:
        if feature in pool.lacks:
            raise ConfigError(
                f"{what} needs {feature}, which a pool of {pool.protocol} does not have; leave it out, or unset "
                f"{POOL_VARIABLE} and use services of `verl-pivot sandbox serve`"
            )


def check_pool_of(trajectories: Path) -> None:
    """Refuse trajectories with a verifier that the pool of VERL_PIVOT_SANDBOX_POOL cannot serve; see `check_pool`."""
    if pool_of_environment() is not None:
        found = ((each.verifier, encode_json(each.verifier_options)) for each in read_trajectories(trajectories))
        check_pool(verifiers=dict.fromkeys(found))


def _needs_of(name: str, options: object) -> list[tuple[str, Feature]]:
    """(verifier, feature that it needs) for a verifier and for those that it is composed of."""
    if not isinstance(options, dict):
        return []
    needs = [(name, VERIFIER_NEEDS[name])] if name in VERIFIER_NEEDS else []
    if name == "code" and any(options.get(key) for key in _CODE_NEEDS_FILES):
        needs.append((name, Feature.FILES))
    parts = options.get("verifiers")
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and isinstance(part.get("name"), str):
            needs += _needs_of(part["name"], part.get("options", {}))
    return needs
