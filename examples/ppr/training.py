"""The study's arms: what each changes in PPR, and its stock command, which trains and asks held-out questions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from examples.dumps import step_dumps
from examples.evaluated_training import EvaluatedTraining
from examples.machine import machine_overrides
from examples.ppr.judge_policy import MAX_ANSWER_TOKENS
from examples.ppr.judges import SCRIPTED
from examples.ppr.serving import MODEL_NAME
from examples.ppr.transcripts import MAX_TURNS

MAX_PROMPT_TOKENS = 64
MAX_TURN_TOKENS = 64
MAX_OBSERVATION_TOKENS = 128
MAX_RESPONSE_TOKENS = 640
"""Tokens of a whole trajectory, observations included."""
EVALUATION_STEPS = 10
"""Steps between two evaluations on the held-out questions."""
_ASKING_MODELS = (
    f"pivot.process.max_tokens={MAX_ANSWER_TOKENS}",
    "pivot.process.invalid_retries=3",
    "pivot.process.judge_validation=False",
)
"""How trained judges are asked: only in training, and up to four times, since a quarter of first answers is invalid."""
_HERE = Path(__file__).parent
PRINCIPLES = _HERE / "principles.yaml"
ONE_QUESTION = _HERE / "one_question.yaml"


class ArmKind(NamedTuple):
    """What one arm changes."""

    mode: str
    """`pivot.process.mode`"""
    judge: str | None = None
    """Name of the judge; None: no judge is asked."""
    overrides: tuple[str, ...] = ()
    """Further overrides of the arm."""


BASE = "base"
"""Arm that is not trained."""
OUTCOME = "outcome"
"""Arm with which the others are compared."""
ARMS: Mapping[str, ArmKind] = {
    BASE: ArmKind("outcome"),
    OUTCOME: ArmKind("outcome"),
    "renorm_oracle": ArmKind("renorm", "oracle"),
    "renorm_oracle_20": ArmKind("renorm", "oracle_20"),
    "renorm_oracle_40": ArmKind("renorm", "oracle_40"),
    "renorm_length": ArmKind("renorm", "length"),
    "sum_length": ArmKind("sum", "length"),
    "process_length": ArmKind("process", "length"),
    "renorm_pprm": ArmKind("renorm", "pprm"),
    "sum_pprm": ArmKind("sum", "pprm"),
    "scaled_pprm": ArmKind("scaled", "pprm"),
    "process_pprm": ArmKind("process", "pprm"),
    "renorm_pprm_mu_0": ArmKind("renorm", "pprm", ("pivot.process.mu=0.0",)),
    "renorm_pprm_mu_0.5": ArmKind("renorm", "pprm", ("pivot.process.mu=0.5",)),
    "renorm_one_question": ArmKind("renorm", "pprm_one_question", (f"pivot.process.principles={ONE_QUESTION}",)),
}
"""{name: arm}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: PPO with a critic, and evaluations of its policy on the held-out questions."""

    judge_url: str | None = None
    """Endpoint of the judge while it runs; None before, so that `settings` do not depend on it."""

    @property
    def kind(self) -> ArmKind:
        return ARMS[self.name]

    @property
    def is_trained(self) -> bool:
        return self.name != BASE

    @property
    def save_freq(self) -> int:
        return EVALUATION_STEPS

    @property
    def test_freq(self) -> int:
        return EVALUATION_STEPS

    @property
    def micro_batch_size(self) -> int:
        return self.batch_size // 2

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=ppr", "+tool_format=search_r1"),
            *machine_overrides(),
            *self._judge,
            f"pivot.rollout.tools={self.tools}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_TURN_TOKENS}",
            f"pivot.rollout.max_observation_tokens={MAX_OBSERVATION_TOKENS}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size // 2}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={self.micro_batch_size}",
            f"critic.optim.lr={2 * self.learning_rate}",
            *self.dumps_and_evaluation,
            f"trainer.max_critic_ckpt_to_keep={self.num_kept_checkpoints}",
            "trainer.project_name=ppr",
        ]

    @property
    def _judge(self) -> list[str]:
        """Overrides for how turns are rewarded; they have the judge's URL only while it runs."""
        mode = f"pivot.process.mode={self.kind.mode}"
        if self.kind.judge is None:
            return [mode]
        url = () if self.judge_url is None else (f"pivot.process.base_url={self.judge_url}",)
        principles = f"pivot.process.principles={PRINCIPLES}"
        answers = (
            f"pivot.process.model={MODEL_NAME}",
            "pivot.process.answer_format=text",
            "pivot.process.max_added_principles=0",  # as the trained judges were taught
        )
        of_models = () if self.kind.judge in SCRIPTED else _ASKING_MODELS
        return [mode, *url, *answers, *of_models, principles, *self.kind.overrides]

    @property
    def evaluations(self) -> dict[int, Path]:
        """{step: dump of the trajectories on the held-out questions}, in order of the steps."""
        return step_dumps(self.validation)
