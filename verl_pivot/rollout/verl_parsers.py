"""The settings' parser, made for a tokenizer; verl's own ones are found by the name that they have there."""

from typing import Any

from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.settings import RolloutSettings
from verl_pivot.rollout.turn_parsers import HermesParser, TagParser, TurnParser, VerlParser


def make_parser(settings: RolloutSettings, tokenizer: Any) -> TurnParser:
    """Raises ConfigError if verl has no parser of the name."""
    name = settings.verl_parser
    if name is None:
        if settings.parser == "hermes":
            return HermesParser()
        return TagParser(settings.tags, answer_tag=settings.answer_tag)
    try:
        parser = ToolParser.get_tool_parser(name, tokenizer)
    except ValueError as error:
        known = ", ".join(f"verl/{each}" for each in sorted(ToolParser._registry))
        raise ConfigError(f"pivot.rollout.parser: verl has no parser {name!r}; known: {known}") from error
    return VerlParser(parser, OpenAIFunctionToolSchema)
