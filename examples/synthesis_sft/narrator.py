"""Program that writes texts that the policy does not: last messages for hindsight, and thoughts for calibration."""

import json
import re

from verl_pivot.synthesis.writer import WriterQuestion

_RESULTS = re.compile(r"The results, one line for each turn:\n(.*?)\n\nWrite", re.DOTALL)


def narrate(question: WriterQuestion) -> str:
    """The value of the last result, or "Done."; if no results are given, a thought about a turn that did not help."""
    found = _RESULTS.search(str(question.messages[-1]["content"]))
    if found is None:
        return "No."
    *_, last = json.loads(found[1].splitlines()[-1])
    match json.loads(last):
        case [[value]]:
            return f"It is {value}."
    return "Done."
