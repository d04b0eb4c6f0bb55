"""ProcessSettings: the section `pivot.process` of the launch command, checked."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import yaml
from omegaconf import DictConfig, OmegaConf
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from verl_pivot.errors import ConfigError
from verl_pivot.rewards.checklist import CHECKLIST_FORMS, ChecklistForm
from verl_pivot.rewards.judge_settings import JudgeSettings
from verl_pivot.rewards.principles import Form, Principle, PrincipleSet
from verl_pivot.rewards.process import ProcessRule
from verl_pivot.validation import first_problem, validated

_SECTION = "pivot.process"
_PRINCIPLES: TypeAdapter[tuple[Principle, ...]] = TypeAdapter(tuple[Principle, ...])


class ProcessSettings(ProcessRule, JudgeSettings):
    """Keys of `pivot.process`, which configs/method/ppr.yaml explains to users."""

    section: ClassVar[str] = _SECTION

    form: Form | ChecklistForm = "principles"
    principles: str
    """Path of a YAML file with the principles."""
    max_added_principles: Annotated[int, Field(ge=0, le=10)] = 2
    checklist_from: Literal["page", "task"] = "page"
    """Texts that the judge sees when it writes a checklist: the task and the first page, or the task alone."""
    progress_by: Literal["labels", "probabilities"] = "labels"
    """Where the progress comes from: the states of items as written, or the probabilities of their tokens."""
    samples: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of answers about the items after each turn; the progress is their mean."""
    judge_validation: bool = True
    """Whether turns of validation rollouts are judged; if not, only the outcome of a validation rollout counts."""
    best_of: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of samples of each turn in validation, of which the checklist's judge chooses one."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mode != "outcome":
            self.check_is_named(f", or set {_SECTION}.mode=outcome, which asks no judge")
        if self.reward == "gain":
            self._check_gain()
        if self.samples > 1 and self.temperature == 0.0:
            raise ValueError(
                f"samples={self.samples} at temperature=0 would be equal answers: set {_SECTION}.temperature above 0, "
                f"or {_SECTION}.samples=1"
            )
        return self

    def _check_gain(self) -> None:
        """Raise ValueError for options that do not go together with reward=gain."""
        if not self.has_checklist:
            raise ValueError(
                f"reward=gain needs scores that tell how far the task has come, and form={self.form} scores each turn "
                f"alone: set {_SECTION}.form=checklist"
            )
        if self.mode == "renorm":
            raise ValueError(
                f"reward=gain does not go together with mode=renorm, which shifts every turn by the outcome, so that "
                f"turns without progress would be rewarded or punished: set {_SECTION}.mode=sum, scaled or process"
            )
        if self.per_turn == "mean":
            raise ValueError(
                "reward=gain does not go together with per_turn=mean: gains add up to the last progress, however many "
                f"turns there are; set {_SECTION}.per_turn=sum"
            )

    @property
    def has_checklist(self) -> bool:
        """Whether turns are judged by checklists, not by principles."""
        return self.form in CHECKLIST_FORMS

    @property
    def checklist_form(self) -> ChecklistForm:
        """Form in which a judge of checklists answers; only where `has_checklist`."""
        assert self.form == "checklist" or self.form == "checklist_released", self.form
        return self.form

    def principle_set(self) -> PrincipleSet:
        """The principles of the file; only without a checklist.

        Raises:
            ConfigError: If the file cannot be read, or holds something else.
        """
        assert self.form == "released" or self.form == "principles", self.form
        return principle_set_of(self.form, Path(self.principles), self.max_added_principles)


def parse_process(config: DictConfig) -> ProcessSettings:
    """Read `pivot.process` from verl's whole config.

    Raises:
        ConfigError: If a key is wrong; the message names it.
    """
    return _parse(OmegaConf.to_yaml(config.pivot.process, resolve=True))


@lru_cache(maxsize=8)
def _parse(text: str) -> ProcessSettings:
    return validated(ProcessSettings, OmegaConf.to_container(OmegaConf.create(text)), _SECTION)


def principle_set_of(form: Form, path: Path, max_added: int, option: str = f"{_SECTION}.principles") -> PrincipleSet:
    """Principles of a file with the form of the answer; in the form `released` the judge adds no principles.

    Raises:
        ConfigError: If the file of principles cannot be read, or holds something else.
    """
    principles = read_principles(path, option)
    return PrincipleSet(form=form, principles=principles, max_added=max_added if form == "principles" else 0)


def read_principles(path: Path, option: str = f"{_SECTION}.principles") -> tuple[Principle, ...]:
    """Principles of a YAML file, a list of `name` and `text`.

    Args:
        path: The file.
        option: How users write the setting, for messages.

    Raises:
        ConfigError: If the file cannot be read or holds something else; the message names it.
    """
    try:
        principles = _PRINCIPLES.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: {path} is not valid YAML: {error}") from error
    except ValidationError as error:
        raise ConfigError(
            f"{option}: {path}: {first_problem(error)}; it must be a list of principles with name and text"
        ) from error
    names = [each.name for each in principles]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{option}: {path} needs one or more principles, each with a name of its own")
    return principles
