"""A scripted judge of PPR behind an OpenAI-compatible endpoint: `python -m examples.ppr.judge_server JUDGE FILE...`."""

import asyncio
import sys
from pathlib import Path

from examples.ppr.judges import SCRIPTED, Scores, answer, read_question
from examples.scripted_judge import Answered, serve
from examples.world.rows import read_questions


def answering(scores: Scores) -> Answered:
    """Function that answers a judge's questions with these scores."""
    return lambda messages: answer(read_question(messages), scores)


if __name__ == "__main__":
    known = {each.text: each for path in sys.argv[2:] for each in read_questions(Path(path))}
    asyncio.run(serve(answering(SCRIPTED[sys.argv[1]](known))))
