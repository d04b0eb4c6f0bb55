"""Options of `verl-pivot process label --by continuations`, and the job and the policy that they name."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.commands.asked_judge import EndpointOptions
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.playing.continuations import ContinuationJob
    from verl_pivot.playing.endpoint_player import ChatSampling
    from verl_pivot.playing.player import Player
    from verl_pivot.playing.turn_form import MessageForm, SameMessageForm
    from verl_pivot.rollout.settings import RolloutSettings
    from verl_pivot.types import JsonObject

_LIMITS = ("max_turns", "max_turn_tokens", "max_observation_tokens", "max_wall_seconds")
"""Options that replace keys of pivot.rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationOptions:
    """Options of --by continuations: the tools, the format of calls, and the limits of rollouts in the run."""

    tools: Annotated[
        str | None, typer.Option(help="Tools file of the run, pivot.rollout.tools, or path/to/file.py:Class.")
    ] = None
    tool_format: Annotated[
        str | None,
        typer.Option(
            help="Format of the run's calls: a name as in +tool_format=, or a YAML file with keys of pivot.rollout."
        ),
    ] = None
    reward_function: Annotated[
        str | None,
        typer.Option(
            help="verl reward function, as file.py:name or module:name, for rollouts that no environment scores."
        ),
    ] = None
    no_replay: Annotated[
        bool, typer.Option("--no-replay", help="Do not run earlier calls again; for tools without state.")
    ] = False
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus sampling of the policy; 1 is off.")] = 1.0
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of turns of a whole rollout, as in the run.")
    ] = None
    max_turn_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens of one turn, as in the run.")
    ] = None
    max_response_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of tokens of a whole rollout: data.max_response_length, as in the run."
        ),
    ] = 8192
    max_observation_tokens: Annotated[
        int | None, typer.Option(min=16, help="Maximum number of tokens of one observation, as in the run.")
    ] = None
    max_wall_seconds: Annotated[
        float | None, typer.Option(min=0.001, help="Time limit of a continuation in seconds.")
    ] = None

    def settings(self) -> "RolloutSettings":
        """Section `pivot.rollout` of the run, with the keys that the options give and defaults for the others.

        Raises:
            ConfigError: If --tools is missing, or the format does not exist, has a wrong key or needs the trainer.
        """
        from verl_pivot.rollout.settings import RolloutSettings
        from verl_pivot.validation import validated

        if self.tools is None:
            raise ConfigError("--tools is missing: give the tools file of the run, its pivot.rollout.tools")
        chosen = {name: getattr(self, name) for name in _LIMITS if getattr(self, name) is not None}
        section = {} if self.tool_format is None else _section(self.tool_format)
        settings = validated(RolloutSettings, {**section, **chosen, "tools": self.tools}, "--tool-format")
        if settings.verl_parser is not None:
            raise ConfigError(
                f"--tool-format {self.tool_format}: parser={settings.parser} needs the trainer; leave the parser out "
                "where the endpoint reads the calls itself"
            )
        return settings


def _section(name: str) -> dict[str, object]:
    """Keys of pivot.rollout in a file, or in one of configs/tool_format."""
    import yaml

    from verl_pivot.configuration import config_groups, configs_dir

    known = config_groups()["tool_format"]
    if name not in known and not name.endswith((".yaml", ".yml")):
        raise ConfigError(f"--tool-format {name}: give one of {', '.join(known)}, or the path of a YAML file")
    path = configs_dir() / "tool_format" / f"{name}.yaml" if name in known else Path(name)
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--tool-format {name} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--tool-format {name} is not valid YAML: {' '.join(str(error).split())}") from error
    match found:
        case {"pivot": {"rollout": dict(section)}} | dict(section):
            return section
    raise ConfigError(f"--tool-format {name} is not a YAML mapping with keys of pivot.rollout")


def continuation_job(
    options: ContinuationOptions, endpoint: EndpointOptions, sampling: "ChatSampling", num_samples: int
) -> "ContinuationJob":
    """Job that continues turns as the options say.

    Raises:
        ConfigError: If an option is missing or wrong.
    """
    from verl_pivot.launch_checks.sandbox_pool import check_pool
    from verl_pivot.playing.continuations import ContinuationJob
    from verl_pivot.playing.rewarding import load_reward_function
    from verl_pivot.playing.running import open_toolset

    endpoint.check("the policy")
    settings = options.settings()
    toolset = open_toolset(settings.tools)
    check_pool(tools=toolset.built_in, needs_sessions=False)
    for pair in settings.tags:
        toolset.check_argument(pair.tool, pair.argument)
    limits = settings.limits(options.max_response_tokens)
    return ContinuationJob(
        toolset=toolset,
        form=_form(settings),
        limits=limits,
        num_samples=num_samples,
        concurrency=endpoint.concurrency,
        identity=_identity(options, settings, endpoint, sampling),
        replays=not options.no_replay,
        max_calls_per_turn=settings.max_calls_per_turn,
        parallel_calls=settings.parallel_calls,
        reward_function=None if options.reward_function is None else load_reward_function(options.reward_function),
    )


def _form(settings: "RolloutSettings") -> "MessageForm | SameMessageForm":
    from verl_pivot.playing.turn_form import MessageForm, SameMessageForm

    if settings.parser == "tags":
        return SameMessageForm(
            answer_tag=settings.answer_tag,
            retry_message=settings.retry_message or "",
            observation_template=settings.observation_template,
        )
    return MessageForm(
        answer_tag=settings.answer_tag,
        retry_message=settings.retry_message or "",
        observation_template=settings.observation_template,
        are_users=settings.observation_role == "user",
    )


def _identity(
    options: ContinuationOptions, settings: "RolloutSettings", endpoint: EndpointOptions, sampling: "ChatSampling"
) -> "JsonObject":
    """All that outcomes depend on apart from the turns; the code of the tools is not included."""
    file = Path(settings.tools)
    return {
        "model": endpoint.model,
        "sampling": asdict(sampling),
        "settings": settings.model_dump(mode="json"),
        "max_response_tokens": options.max_response_tokens,
        "tools": file.read_text(encoding="utf-8") if file.suffix in (".yaml", ".yml") else settings.tools,
        "reward_function": options.reward_function,
        "replays": not options.no_replay,
    }


def policy_player(options: ContinuationOptions, endpoint: EndpointOptions, sampling: "ChatSampling") -> "Player":
    """Player that asks the policy at its endpoint; nothing is asked yet."""
    from verl_pivot.engines.chat import ChatClient
    from verl_pivot.engines.retries import Retries
    from verl_pivot.playing.endpoint_player import EndpointPlayer
    from verl_pivot.playing.tagged_player import TaggedPlayer
    from verl_pivot.rollout.turn_parsers import TagParser

    settings, model = options.settings(), str(endpoint.model)
    client = ChatClient(
        endpoint.base_url or (),
        model,
        endpoint.api_key(),
        Retries(num_attempts=endpoint.max_retries + 1, timeout_seconds=endpoint.timeout_seconds),
        remedy="check that --base-url and --model name the policy, and that the rollouts fit into its context",
    )
    player = EndpointPlayer(client, model, sampling)
    if settings.parser != "tags":
        return player
    return TaggedPlayer(player, TagParser(settings.tags, settings.answer_tag))
