"""Step `magnet`: a path of calls -> a conversation, by back-translation to requests and translation to calls."""

from collections.abc import Sequence

from verl_pivot.data.turns import PROVENANCE
from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.magnet_cast import USER, Cast, MagnetOptions
from verl_pivot.synthesis.path_source import PATH, USER_ROLE
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.tool_paths import ToolPath
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import JsonObject, Message, Trajectory


@make_step("magnet", options=MagnetOptions)
class MagnetStep:
    """Writes the conversation of a draft's path; a message that fails a program's check is drawn again, a few times.

    First, the user's writer translates the calls of each request back into a user message. Then the caller, which
    reads only the conversation, must make the calls of the path (`path_calls.call_problem`). In Magnet
    (arXiv:2503.07826, section 3), a model compares the two translations; here a program does.
    """

    def __init__(self, options: MagnetOptions) -> None:
        self._options = options

    async def prepare(self, workshop: Workshop) -> None:
        if self._options.results == "tools" and workshop.inputs.toolset is None:
            raise ConfigError(
                f"step {workshop.step}: `results: tools` runs calls: give --tools, or write results: writer"
            )

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        start = draft.trajectory
        if start is None or PATH not in draft.values:
            raise ConfigError(f"step {workshop.step} needs a path: put step tool_path before it")
        path = ToolPath.model_validate(draft.values[PATH])
        try:
            messages = await self._conversation(path, start.tools, workshop, str(draft.values.get(USER_ROLE, USER)))
        except ToolFailureError as error:
            return [draft.rejected("tool_failed", str(error))]
        trajectory = Trajectory(
            id=draft.id,
            messages=messages,
            tools=start.tools,
            metadata={PROVENANCE: {"split_by": draft.item}},
        )
        return [draft.made(0, trajectory=trajectory).with_values(results=self._options.results)]

    async def _conversation(
        self, path: ToolPath, tools: Sequence[JsonObject], workshop: Workshop, user_role: str
    ) -> tuple[Message, ...]:
        toolset = workshop.inputs.toolset
        if self._options.results == "writer" or toolset is None:
            return await conversation(path, Cast(self._options, workshop, tools, None, user_role=user_role))
        async with toolset.open({}) as opened:
            cast = Cast(self._options, workshop, tools, opened.toolbox, user_role=user_role)
            return await conversation(path, cast)


async def conversation(path: ToolPath, cast: Cast) -> tuple[Message, ...]:
    """The messages of a path's conversation, in which each request is answered by its calls and then a text.

    Args:
        path: A legal path.
        cast: Writers of the messages.

    Raises:
        BadRowError: If every draw of a message has a problem; the message is the problem of the last draw.
    """
    messages: list[Message] = []
    results: list[Message] = []
    for turn in path.turns:
        messages.append(await cast.request(turn, path, messages))
        for position, planned in enumerate(turn.calls, start=1):
            withheld = turn.withheld if position == len(turn.calls) else None
            before = tuple(messages)
            if withheld is not None:
                messages.append(await cast.text(messages, withheld=withheld))
                messages.append(await cast.answer(turn, messages))
            action = await cast.call(planned, messages, results, withheld=withheld, before=before)
            messages.append(action)
            result = await cast.result(action.tool_calls[0], path.needed_fields(len(results)), messages)
            messages.append(result)
            results.append(result)
        messages.append(await cast.text(messages, withheld=None))
    return tuple(messages)
