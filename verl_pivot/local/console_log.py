"""Output of verl's console logger -> the steps with their metrics."""

import re
from typing import NamedTuple

_STEP = re.compile(r"step:(\d+) - (.*)")
_METRIC = re.compile(r"(?<![\w/@.-])([\w/@.-]+):(?:np\.\w+\()?(-?(?:\d[\d.e+-]*|inf|nan))\)?(?= - |\s|$)")


class LoggedStep(NamedTuple):
    number: int
    """Step of the trainer; 0 for the validation before training."""
    metrics: dict[str, float]

    @property
    def is_training(self) -> bool:
        return "critic/score/mean" in self.metrics


def logged_steps(text: str) -> list[LoggedStep]:
    """[num_steps] every step in a text, in its order."""
    return [
        LoggedStep(int(number), {name: float(value) for name, value in _METRIC.findall(line)})
        for number, line in _STEP.findall(text)
    ]
