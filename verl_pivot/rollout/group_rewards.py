"""GroupRewards: finished rollouts of one prompt -> a Verdict for each, from comparing them (`pivot.ruler`)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, Self

from omegaconf import DictConfig

from verl_pivot.data.faults import fault_verdict, with_row_name
from verl_pivot.data.labels import has_label
from verl_pivot.data.rollout_records import GROUP_VERDICT_FIELD, VERDICT_FIELD, is_undecided
from verl_pivot.data.validation_rows import is_for_validation
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.errors import ConfigError, VerifierError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.rewards.compose_settings import values_of_terms
from verl_pivot.rewards.principles import ShownTurn, task_text
from verl_pivot.rewards.process_metrics import JUDGE_FAILED
from verl_pivot.rewards.ruler_judge import ComparedTrajectory, RulerJudge
from verl_pivot.rewards.ruler_settings import RulerSettings, parse_ruler
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout.meeting import Meeting, MeetingError, Membership
from verl_pivot.types import JsonObject, Verdict
from verl_pivot.user_code import MAX_DETAIL


class GroupSizes(NamedTuple):
    """Number of rollouts that verl plays of one prompt."""

    training: int
    validation: int

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """The sizes in verl's whole config."""
        rollout = config.actor_rollout_ref.rollout
        return cls(int(rollout.n), int(rollout.val_kwargs.n))


class FinishedRollout(NamedTuple):
    """A rollout whose tools are closed, and whose place on an engine is free."""

    output: TurnRewardOutput | list[TurnRewardOutput]
    """Row of the rollout; an empty list for one without any sampled token."""
    turns: list[ShownTurn]
    schemas: list[JsonObject]
    """Schemas of its tools."""


class GroupRewards:
    """Compares the rollouts of each prompt, all of which one worker plays; made once for an event loop.

    A rollout that the system failed is left out, and at least two must remain. In validation, a row with a label or an
    environment is scored by that. The rollouts of other rows are compared; if a row has only one, it is scored alone.
    """

    def __init__(
        self, settings: RulerSettings, sizes: GroupSizes, tokenizer: Tokenizer, num_workers: int, *, is_term: bool
    ) -> None:
        """Make the judge; nothing is asked yet.

        Args:
            settings: The judge, its rubric and limits.
            sizes: Number of rollouts of each prompt.
            tokenizer: Tokenizer of the policy.
            num_workers: Processes that share `max_concurrency`.
            is_term: Whether a term of `pivot.rewards` reads the score, so that labelled rows need it in validation too.

        Raises:
            ConfigError: If the judge cannot be made of these settings.
        """
        self._sizes, self._is_term = sizes, is_term
        self._judge = RulerJudge(settings, tokenizer, num_workers=num_workers)
        self._meeting: Meeting[ComparedTrajectory, float] = Meeting(
            self._judge.scores, wait_seconds=settings.wait_seconds
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._judge.close()

    async def rewarded(
        self, row: Mapping[str, Any], play: Callable[[], Awaitable[FinishedRollout]]
    ) -> TurnRewardOutput | list[TurnRewardOutput]:
        """Play a rollout, and add the verdict from comparing it with the others of its prompt.

        Args:
            row: Columns of the dataset's row.
            play: Plays the rollout.

        Raises:
            ConfigError: If nothing says whether the row is for validation.
        """
        is_validation = is_for_validation(row, "pivot.ruler", "mcp_rl")
        size = self._sizes.validation if is_validation else self._sizes.training
        async with self._meeting.joined(str(row["uid"]), size, min_items=min(2, size)) as member:
            finished = await play()
            by_label = is_validation and not self._is_term
            if isinstance(finished.output, list) or _is_scored(finished.output, row, by_label=by_label):
                return finished.output
            trajectory = ComparedTrajectory(task_text(row["raw_prompt"]), finished.schemas, finished.turns)
            verdict = await _verdict(member, trajectory)
        finished.output.extra_fields[GROUP_VERDICT_FIELD] = asdict(with_row_name(verdict, row))
        return finished.output


def _is_scored(output: TurnRewardOutput, row: Mapping[str, Any], *, by_label: bool) -> bool:
    """Whether a rollout is not compared: the system failed it, or labels count here and the row itself scores it."""
    decided = output.extra_fields.get(VERDICT_FIELD)
    if is_undecided(decided):
        return True
    return by_label and (decided is not None or has_label(row))


async def _verdict(member: Membership[ComparedTrajectory, float], trajectory: ComparedTrajectory) -> Verdict:
    """The judge's verdict; an undecided one if there is no judgement, which is never the policy's fault."""
    try:
        return Verdict(score=await member.result(trajectory), reason="compared")
    except MeetingError as error:
        return Verdict.undecided(error.failure.value, str(error))
    except VerifierError as error:
        return Verdict.undecided(JUDGE_FAILED, str(error)[:MAX_DETAIL])
    except ConfigError as error:
        return fault_verdict(error)


def group_rewards_of(config: DictConfig, tokenizer: Tokenizer) -> LoopLocal[GroupRewards] | None:
    """The comparer of the rollouts of this process, shared by all its agent loops; None without `pivot.ruler`.

    Args:
        config: verl's whole config.
        tokenizer: Tokenizer of the policy, which is the same in the whole process.

    Raises:
        ConfigError: If a key of the section is wrong.
    """
    if "ruler" not in config.pivot:
        return None
    settings, sizes = parse_ruler(config), GroupSizes.of(config)
    num_workers, is_term = int(config.actor_rollout_ref.rollout.agent.num_workers), "ruler" in values_of_terms(config)
    made = LoopLocal(lambda: GroupRewards(settings, sizes, tokenizer, num_workers, is_term=is_term))
    return _made.setdefault((settings, sizes, num_workers, is_term), made)


_made: dict[tuple[RulerSettings, GroupSizes, int, bool], LoopLocal[GroupRewards]] = {}
"""{settings: comparer} of this process, kept here since verl makes an agent loop for each rollout."""
