"""How the outcomes were made -> the commands, and the learning rates of all arms, in Markdown."""

from collections.abc import Sequence

from examples.quickstart.training import shell
from examples.study.outcomes import StudyResults


def commands_lines(results: StudyResults) -> list[str]:
    """The study's command, each arm's rate, and the launch of each arm."""
    about = results.about
    run = list(dict.fromkeys(each.arm for each in results.evaluations))
    arms = {name: settings for name, settings in about.arms.items() if name in run}
    if not arms:
        return ["Nothing was run."]
    tuned = "chosen by tuning, on a seed that is not reported; those of extra arms are first guesses"
    source = tuned if about.is_tuned else "first guesses, without tuning"
    lines = [
        *_block(["python -m examples.study " + " ".join(about.options)]),
        "",
        f"Learning rates and epochs are {source}:",
        "",
        "| arm | learning rate | epochs |",
        "|---|---|---|",
    ]
    for name, settings in arms.items():
        rate = "-" if settings.learning_rate is None else f"{settings.learning_rate:g}"
        lines.append(f"| `{name}` | {rate} | {'-' if settings.num_epochs is None else settings.num_epochs} |")
    return [*lines, "", *_launches({name: settings.command for name, settings in arms.items() if settings.command})]


def _launches(commands: dict[str, tuple[str, ...]]) -> list[str]:
    """The arguments that all launches share, and then the other arguments of each launch."""
    if not commands:
        return []
    common = [each for each in next(iter(commands.values())) if all(each in command for command in commands.values())]
    lines = ["All launches, in the folder OUT and with the seed SEED, have in common:", "", *_block([shell(common)])]
    for name, command in commands.items():
        lines += ["", f"`{name}` adds:", "", *_block([each for each in command if each not in common])]
    return lines


def _block(lines: Sequence[str]) -> list[str]:
    return ["```", *(line.rstrip() for line in lines), "```"]
