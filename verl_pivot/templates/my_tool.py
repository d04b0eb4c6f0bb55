"""Tool `my_tool`: puts an item from the stock into a basket; each trajectory has its own basket."""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from verl_pivot.tools.contract import ToolError
from verl_pivot.tools.workspace import Workspace

STOCK = {"tea": 3, "coffee": 1}


@dataclass
class Basket:
    """Items that one trajectory has taken; `workspace.state(Basket)` makes the basket at the first call."""

    taken: dict[str, int] = field(default_factory=dict)


def my_tool(
    item: Annotated[str, Field(description="Name of the item.")],
    workspace: Workspace,
    amount: Annotated[int, Field(ge=1, description="How many of it.")] = 1,
) -> str:
    """Put something into the basket, and read what is in it."""
    taken = workspace.state(Basket).taken
    if taken.get(item, 0) + amount > STOCK.get(item, 0):
        raise ToolError(f"there are only {STOCK.get(item, 0)} of {item}")  # the policy reads this and goes on
    taken[item] = taken.get(item, 0) + amount
    return ", ".join(f"{count} {name}" for name, count in taken.items())
