"""Renderer of a Gymnasium environment: arguments of a call -> action, and result of a step -> text."""

import json
import re
from typing import Any, NamedTuple

from verl_pivot.environments.spaces import (
    GIVE_RENDERER,
    MAX_OBSERVATION_NUMBERS,
    action_of,
    num_numbers,
    plain,
    schema_of,
)
from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra
from verl_pivot.types import JsonObject

with extra("gymnasium"):
    from gymnasium import Env

_HIGHLIGHTED = re.compile(r"\x1b\[[0-9;]*m([^\x1b]*)\x1b\[0m")
"""Text that a terminal would show in another colour; it gets brackets, such as the player's place in FrozenLake."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class StepResult(NamedTuple):
    """Values that `step` of an environment returned; after `reset` the reward is 0 and nothing has ended."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class EnvironmentRenderer:
    """Actions and observations as the policy writes and reads them. Subclass it and name the class as `renderer`.

    Example:
        class Pushes(EnvironmentRenderer):
            def parameters(self):
                side = {"type": "string", "enum": ["left", "right"]}
                return {"type": "object", "properties": {"side": side}, "required": ["side"]}

            def action(self, arguments):
                return ["left", "right"].index(arguments["side"])

            def text(self, result):
                return f"The pole leans by {result.observation[2]:.3f} rad."
    """

    def __init__(self, environment: "Env[Any, Any]") -> None:
        """Render one environment, which may have any spaces.

        Args:
            environment: The environment of a rollout, before its first `reset`.
        """
        self.environment = environment

    def parameters(self) -> JsonObject:
        """JSON schema of the tool's arguments; the same for all rollouts. By default one argument, `action`.

        Raises:
            ConfigError: If no schema describes the action space.
        """
        properties: JsonObject = {"action": schema_of(self.environment.action_space)}
        return {"type": "object", "properties": properties, "required": ["action"], "additionalProperties": False}

    def action(self, arguments: JsonObject) -> Any:
        """The action for `step`.

        Args:
            arguments: Arguments that the schema accepts.

        Raises:
            ValueError: If they are no action; the policy reads the text and may try again.
        """
        return action_of(self.environment.action_space, arguments["action"])

    def text(self, result: StepResult) -> str:
        """The observation as the policy reads it; by default its JSON value, and the drawing of an `ansi` environment.

        Raises:
            ConfigError: If the observation space is too large to be shown as text.
        """
        space = self.environment.observation_space
        if (number := num_numbers(space)) > MAX_OBSERVATION_NUMBERS:
            raise ConfigError(
                f"the observation space {space!r:.200} has {number} numbers, and at most {MAX_OBSERVATION_NUMBERS} "
                f"are shown as text; {GIVE_RENDERER}"
            )
        value = plain(result.observation)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if self.environment.render_mode != "ansi":
            return text
        drawn = _COLOUR.sub("", _HIGHLIGHTED.sub(r"[\1]", str(self.environment.render()))).strip()
        return f"{text}\n{drawn}"
