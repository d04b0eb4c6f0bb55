"""Options of commands that ask a judge about turns, and the judge that they make."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.commands.options import option_name, refuse_given
from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.engines.text_cut import Tokenizer
    from verl_pivot.rewards.checklist_judge import ChecklistJudge
    from verl_pivot.rewards.principles import Fit, PrincipleSet
    from verl_pivot.rewards.process_settings import ProcessSettings
    from verl_pivot.rewards.turn_judge import TurnJudge


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """The model that a command asks, and how."""

    base_url: Annotated[
        list[str] | None,
        typer.Option(help="URL of the model's OpenAI-compatible endpoint; repeatable, for servers of the same model."),
    ] = None
    model: Annotated[str | None, typer.Option(help="Name of the model at the endpoint.")] = None
    api_key_variable: Annotated[
        str | None, typer.Option(help="Environment variable with the endpoint's key, if it needs one.")
    ] = None
    concurrency: Annotated[
        int, typer.Option(min=1, help="Maximum number of questions or conversations at the same time.")
    ] = 64
    timeout_seconds: Annotated[float, typer.Option(min=0.001, help="Timeout of one answer in seconds.")] = 300.0
    max_retries: Annotated[
        int,
        typer.Option(min=0, max=20, help="Maximum number of retries of a request while the endpoint is busy or down."),
    ] = 8

    def check(self, whose: str) -> None:
        """Refuse an endpoint that is not named, or whose key is missing.

        Raises:
            ConfigError: If the URL, the model or the key is missing; the message names the option.
        """
        for option, value in (("--base-url", self.base_url), ("--model", self.model)):
            if not value:
                raise ConfigError(f"{option} is missing: set it to the value for {whose}'s OpenAI-compatible endpoint")
        if self.api_key_variable is not None and not os.environ.get(self.api_key_variable):
            raise ConfigError(
                f"--api-key-variable {self.api_key_variable}: the environment has no such variable; set it to the key "
                f"of {whose}"
            )

    def api_key(self) -> str:
        """API key of the endpoint, from the variable that `check` accepted; "none" without such a variable."""
        return "none" if self.api_key_variable is None else os.environ[self.api_key_variable]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    """Options of the questions to a judge, and of its answers."""

    form: Annotated[
        Literal["principles", "released", "checklist", "checklist_released"],
        typer.Option(help="Form of the judge's answers, as pivot.process.form; checklists only with `process bench`."),
    ] = "principles"
    principles: Annotated[
        Path | None, typer.Option(help="YAML file with the principles; by default those for policies that search.")
    ] = None
    max_added_principles: Annotated[
        int,
        typer.Option(
            min=0, max=10, help="With --form principles: maximum number of principles that the judge may add."
        ),
    ] = 2
    answer_format: Annotated[
        Literal["json_schema", "json_object", "text"],
        typer.Option(help="How the endpoint is asked for JSON, with --form principles; use text for SGLang on a CPU."),
    ] = "json_schema"
    max_tokens: Annotated[int, typer.Option(min=16, help="Maximum number of tokens of the judge's answer.")] = 4096
    max_question_tokens: Annotated[
        int,
        typer.Option(
            min=256, help="Maximum number of tokens of a question's texts; longer texts need --tokenizer, and are cut."
        ),
    ] = 16384
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or Hugging Face name of the tokenizer for --max-question-tokens.")
    ] = None

    def principle_set(self) -> "PrincipleSet":
        """Principles that the judge goes by, and the form of its answer.

        Raises:
            ConfigError: If the principles cannot be read, or --form has none.
        """
        from verl_pivot.rewards.process_settings import principle_set_of

        if self.form not in ("released", "principles"):
            raise ConfigError(f"--form {self.form} has no principles: choose principles or released")
        return principle_set_of(self.form, _principles_file(self.principles), self.max_added_principles, "--principles")

    def fit(self) -> "Fit":
        """Function that cuts the texts of a question down to `max_question_tokens`."""
        from verl_pivot.engines.text_cut import fit_together

        found = _tokenizer(self.tokenizer)
        return lambda texts, order: fit_together(texts, order, self.max_question_tokens, found)


def refuse_void_of_form(ctx: typer.Context, form: str) -> None:
    """Stop a command with options of a form in which the judge answers in JSON, if it answers in lines.

    Raises:
        ConfigError: If there is such an option.
    """
    if form.endswith("released"):
        void = ("max_added_principles", "answer_format")
        refuse_given(ctx, void, f"with --form {form}, in which the judge answers in lines")


def judge_settings(endpoint: EndpointOptions, question: QuestionOptions, cache: Path | None) -> "ProcessSettings":
    """Settings of the judge that the options name.

    Raises:
        ConfigError: If an option is missing, the principles cannot be read, or the key is not in the environment.
    """
    from verl_pivot.rewards.process_settings import ProcessSettings

    endpoint.check("the judge")
    if not question.form.startswith("checklist"):
        question.principle_set()
    return ProcessSettings.model_validate(
        {
            "base_url": tuple(endpoint.base_url or ()),
            "model": endpoint.model,
            "api_key_variable": endpoint.api_key_variable,
            "form": question.form,
            "principles": str(_principles_file(question.principles)),
            "max_added_principles": question.max_added_principles,
            "answer_format": question.answer_format,
            "max_tokens": question.max_tokens,
            "max_question_tokens": question.max_question_tokens,
            "max_concurrency": endpoint.concurrency,
            "timeout_seconds": endpoint.timeout_seconds,
            "max_retries": endpoint.max_retries,
            "cache_dir": None if cache is None else str(cache),
        }
    )


def judge_of(settings: "ProcessSettings", question: QuestionOptions) -> "TurnJudge":
    """The judge, which asks nothing yet."""
    from verl_pivot.rewards.turn_judge import TurnJudge

    return TurnJudge(settings, _tokenizer(question.tokenizer), written=option_name)


def checklist_judge_of(settings: "ProcessSettings", question: QuestionOptions) -> "ChecklistJudge":
    """The judge of checklists, which asks nothing yet."""
    from verl_pivot.rewards.checklist_judge import ChecklistJudge

    return ChecklistJudge(settings, _tokenizer(question.tokenizer), written=option_name)


def _principles_file(given: Path | None) -> Path:
    """The file of `--principles`, by default the one for policies that search."""
    from verl_pivot.configuration import configs_dir

    return given or configs_dir() / "principles" / "search.yaml"


def _tokenizer(name: str | None) -> "Tokenizer":
    if name is None:
        return _NoTokenizer()
    from transformers import AutoTokenizer

    try:
        found: Tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tokenizer {name} cannot be loaded: {error}") from error
    return found


class _NoTokenizer:
    """Placeholder without --tokenizer, which raises when a question is so long that its tokens must be counted."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise ConfigError(
            "the texts of a question may have more tokens than --max-question-tokens: name the judge's tokenizer with "
            "--tokenizer, so that they are counted and cut, or raise --max-question-tokens up to the judge's context"
        )

    def decode(self, token_ids: list[int]) -> str:
        raise AssertionError(f"decoding {len(token_ids)} tokens that were never encoded")
