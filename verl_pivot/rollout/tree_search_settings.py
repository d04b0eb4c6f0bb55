"""TreeSearchSettings: the section `pivot.tree_search` of the launch command, checked."""

from enum import StrEnum
from functools import lru_cache
from typing import Annotated

from omegaconf import DictConfig, OmegaConf
from pydantic import Field, field_validator

from verl_pivot.errors import ConfigError
from verl_pivot.rollout.tree_search import SearchShape
from verl_pivot.validation import Options, validated

_SECTION = "pivot.tree_search"
_NOT_OFFERED = {
    "verifier": "a verifier compares one action with an expert's, which tasks do not have: set outcome, for which the "
    "environment's `score` decides",
    "judge": "no judge is asked between turns: ask one in the environment's `progress`, or set outcome",
    "continuations": "set outcome, and lookahead to pivot.rollout.max_turns: each candidate is then scored by one "
    "continuation to the end",
}
"""{score that papers use, and that is not offered here: advice}"""


class ScoredBy(StrEnum):
    """Source of the score of a state."""

    PROGRESS = "progress"
    """`progress` of the environment; the sum of the rewards so far, if it is one of Gymnasium."""
    OUTCOME = "outcome"
    """`score` of the environment, as if a limit ended the rollout there."""


class TreeSearchSettings(Options):
    """Keys of `pivot.tree_search`, which configs/method/tree_search.yaml explains to users."""

    num_candidates: Annotated[int, Field(ge=2)] = 4
    """Turns that are drawn after each rollout of the beam (M in TSR)."""
    beam: Annotated[int, Field(ge=1)] = 2
    """Rollouts that stay after each turn (B in TSR)."""
    lookahead: Annotated[int, Field(ge=1)] = 1
    """Turns after which a candidate is scored, its own included (D in TSR)."""
    scored_by: ScoredBy = ScoredBy.PROGRESS

    @field_validator("scored_by", mode="before")
    @classmethod
    def _refuse_others(cls, value: object) -> object:
        if isinstance(value, str) and value in _NOT_OFFERED:
            raise ValueError(f"scored_by={value} is not offered: {_NOT_OFFERED[value]}")
        return value

    @property
    def shape(self) -> SearchShape:
        return SearchShape(num_candidates=self.num_candidates, beam=self.beam, lookahead=self.lookahead)


def parse_tree_search(config: DictConfig) -> TreeSearchSettings:
    """Read `pivot.tree_search` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong or missing; the message names it.
    """
    chosen = OmegaConf.select(config, _SECTION)
    if chosen is None:
        raise ConfigError(f"there is no {_SECTION}: add +method=tree_search to the command")
    return _parse(OmegaConf.to_yaml(chosen, resolve=True))


@lru_cache(maxsize=8)
def _parse(text: str) -> TreeSearchSettings:
    return validated(TreeSearchSettings, OmegaConf.to_container(OmegaConf.create(text)), _SECTION)
