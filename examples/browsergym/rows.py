"""Names of BrowserGym's environments and seeds -> a parquet file with a row for each pair."""

from pathlib import Path
from typing import Annotated

import typer

from verl_pivot.environments.verifiers_rows import write_rows
from verl_pivot.types import JsonObject


def main(
    environments: Annotated[list[str], typer.Argument(help="Names, such as browsergym/miniwob.click-test.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each environment, from --first-seed on.")] = 100,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    out: Annotated[Path, typer.Option(help="The parquet file.")] = Path("browsergym.parquet"),
) -> None:
    """Write one row per environment and seed, which examples/browsergym/agent.py plays.

    Example: python -m examples.browsergym.rows browsergym/miniwob.click-test --seeds 200 --out web.parquet
    """
    named = [(name, seed) for seed in range(first_seed, first_seed + seeds) for name in environments]
    number = write_rows([row_of(name, seed, index) for index, (name, seed) in enumerate(named)], out)
    typer.echo(f"Wrote {number} rows to {out}.")


def row_of(name: str, seed: int, index: int) -> JsonObject:
    """Row of an environment with a seed.

    The agent writes the messages of the episode itself; the prompt only tells people what the row is.

    Raises:
        typer.BadParameter: If the name is not one of BrowserGym's.
    """
    if not name.startswith("browsergym/"):
        raise typer.BadParameter(
            f"{name!r} is no name of BrowserGym's: write browsergym/, as browsergym/miniwob.click-test"
        )
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": f"{name}, seed {seed}"}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "environment": name, "seed": seed},
    }


if __name__ == "__main__":
    typer.run(main)
