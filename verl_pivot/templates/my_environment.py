"""Environment `MyEnvironment`: a shop of its own for each trajectory, the tools that act on it, and the outcome."""

from verl_pivot.tools.contract import Environment, ToolError, tool
from verl_pivot.types import JsonObject, Message, Verdict


class MyEnvironment(Environment):
    """State of one trajectory, made from the row's column `metadata`; the policy may call the methods under `@tool`."""

    def __init__(self, metadata: JsonObject) -> None:
        wanted, stock = metadata["wanted"], metadata["stock"]
        assert isinstance(wanted, dict), metadata
        assert isinstance(stock, dict), metadata
        self._wanted = {str(item): int(str(amount)) for item, amount in wanted.items()}
        self._stock = {str(item): int(str(amount)) for item, amount in stock.items()}
        self._ordered: dict[str, int] = {}

    @tool
    def list_stock(self) -> str:
        """List what the shop has."""
        return ", ".join(f"{amount} {item}" for item, amount in self._stock.items())

    @tool
    def place_order(self, item: str, amount: int = 1) -> str:
        """Order something, and read what is left of it."""
        if not 1 <= amount <= self._stock.get(item, 0):
            raise ToolError(f"there are {self._stock.get(item, 0)} of {item}")  # the policy reads this and goes on
        self._stock[item] -= amount
        self._ordered[item] = self._ordered.get(item, 0) + amount
        return f"{self._stock[item]} left"

    async def score(self, answer: Message | None) -> Verdict:
        """The outcome; `answer` is None if a limit has ended the trajectory."""
        if answer is None:
            return Verdict.refuse("no_answer")
        return Verdict.accept() if self._ordered == self._wanted else Verdict.refuse("other_order", str(self._ordered))

    async def close(self) -> None:
        """Release the resources of the state, such as connections; called once, however the trajectory ended."""
