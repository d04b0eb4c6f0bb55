"""A shop with three packs of tea, for rollouts in tests."""

from verl_pivot.tools.contract import Environment, tool
from verl_pivot.types import JsonObject, Message, Verdict


class Shop(Environment):
    """Shop whose task is solved if one pack is left and the policy answers."""

    def __init__(self, metadata: JsonObject) -> None:
        self.stock = 3

    @tool
    def order(self, amount: int = 1) -> str:
        """Order packs of tea."""
        self.stock -= amount
        return f"{self.stock} left"

    @tool
    def prices(self) -> dict[str, int]:
        """Prices of a pack, by the kind of tea."""
        return {"black": 3, "green": 4}

    async def score(self, answer: Message | None) -> Verdict:
        return Verdict.accept() if answer and self.stock == 1 else Verdict.refuse("wrong_stock", f"{self.stock} left")
