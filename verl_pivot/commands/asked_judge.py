"""Options of commands that ask a judge about turns, and the judge that they make."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.engines.text_cut import Tokenizer
    from verl_pivot.rewards.principles import Fit
    from verl_pivot.rewards.process_settings import ProcessSettings
    from verl_pivot.rewards.turn_judge import TurnJudge

BaseUrls = Annotated[
    list[str] | None,
    typer.Option("--base-url", help="The judge's OpenAI-compatible endpoint; repeatable, for servers of one model."),
]
Model = Annotated[str | None, typer.Option(help="Name of the judge's model there.")]
KeyVariable = Annotated[str | None, typer.Option(help="Environment variable with the endpoint's key, if it needs one.")]
AnswerForm = Annotated[
    Literal["principles", "released"], typer.Option(help="How the judge answers, as pivot.process.form.")
]
Principles = Annotated[
    Path | None, typer.Option(help="YAML with the principles; by default those for policies that search.")
]
MaxAdded = Annotated[
    int, typer.Option(min=0, max=10, help="Most principles that the judge may add, with --form principles.")
]
Format = Annotated[
    Literal["json_schema", "json_object", "text"],
    typer.Option(help="How the endpoint is told the form principles; text for SGLang on a CPU."),
]
MaxTokens = Annotated[int, typer.Option(min=16, help="Tokens of the judge's longest answer.")]
MaxQuestionTokens = Annotated[
    int, typer.Option(min=256, help="Tokens of the texts of a question; longer ones need --tokenizer, and are cut.")
]
TokenizerName = Annotated[
    str | None, typer.Option(help="Folder or Hugging Face name of the tokenizer that counts them.")
]
Concurrency = Annotated[int, typer.Option(min=1, help="Questions at a time.")]
TimeoutSeconds = Annotated[float, typer.Option(min=0.001, help="Longest time of one answer.")]
MaxRetries = Annotated[
    int, typer.Option(min=0, max=20, help="Times that a request is sent again while the judge is busy or down.")
]


def option_name(setting: str) -> str:
    """How a setting of pivot.process is written as an option: max_tokens -> --max-tokens."""
    return "--" + setting.replace("_", "-")


def principles_file(given: Path | None) -> Path:
    """The file of `--principles`, or that of policies that search."""
    from verl_pivot.configuration import configs_dir

    return given or configs_dir() / "principles" / "search.yaml"


def fit_of(max_question_tokens: int, tokenizer: str | None) -> "Fit":
    """What cuts the texts of a question down to `max_question_tokens`."""
    from verl_pivot.engines.text_cut import fit_together

    found = _tokenizer(tokenizer)
    return lambda texts, order: fit_together(texts, order, max_question_tokens, found)


def judge_settings(
    *,
    base_urls: Sequence[str] | None,
    model: str | None,
    api_key_variable: str | None,
    form: str,
    principles: Path | None,
    max_added: int,
    answer_format: str,
    max_tokens: int,
    max_question_tokens: int,
    concurrency: int,
    timeout_seconds: float,
    max_retries: int,
    cache: Path | None,
) -> "ProcessSettings":
    """The judge that the options name.

    Raises:
        ConfigError: If an option is missing, the principles cannot be read, or the key is not in the environment.
    """
    from verl_pivot.rewards.process_settings import ProcessSettings, read_principles

    for option, value in (("--base-url", base_urls), ("--model", model)):
        if not value:
            raise ConfigError(f"{option} is missing: set it to that of the judge, an OpenAI-compatible endpoint")
    if api_key_variable is not None and not os.environ.get(api_key_variable):
        raise ConfigError(
            f"--api-key-variable {api_key_variable}: the environment has no such variable; set it to the judge's key"
        )
    file = principles_file(principles)
    read_principles(file, "--principles")
    return ProcessSettings.model_validate(
        {
            "base_url": tuple(base_urls or ()),
            "model": model,
            "api_key_variable": api_key_variable,
            "form": form,
            "principles": str(file),
            "max_added_principles": max_added,
            "answer_format": answer_format,
            "max_tokens": max_tokens,
            "max_question_tokens": max_question_tokens,
            "max_concurrency": concurrency,
            "timeout_seconds": timeout_seconds,
            "max_retries": max_retries,
            "cache_dir": None if cache is None else str(cache),
        }
    )


def judge_of(settings: "ProcessSettings", tokenizer: str | None) -> "TurnJudge":
    """The judge, which asks nothing yet."""
    from verl_pivot.rewards.turn_judge import TurnJudge

    return TurnJudge(settings, _tokenizer(tokenizer), written=option_name)


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
    """Stands for the tokenizer as long as no question is so long that its tokens must be counted."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise ConfigError(
            "the texts of a question may have more tokens than --max-question-tokens: name the judge's tokenizer with "
            "--tokenizer, so that they are counted and cut, or raise --max-question-tokens up to the judge's context"
        )

    def decode(self, token_ids: list[int]) -> str:
        raise AssertionError(f"decoding {len(token_ids)} tokens that were never encoded")
