"""Environments that sum up numbers; most of them go wrong in one way when calls run again."""

import itertools
from collections.abc import Iterator

from verl_pivot.tools.contract import AchievedTask, Environment, tool
from verl_pivot.types import Json, JsonObject, Message

_numbers: Iterator[int] = itertools.count()
OPENED: list["Tally"] = []
"""Every tally that was made, for tests that count them."""


class Tally(Environment):
    """Sums up the numbers that it is told, up to a wanted sum."""

    def __init__(self, metadata: JsonObject) -> None:
        self.wanted, self.told, self.num_closed = int(str(metadata.get("wanted", 3))), [0], 0
        OPENED.append(self)

    @tool
    def tell(self, number: int) -> int:
        """Tell a number; the sum so far comes back."""
        self.told.append(number)
        return sum(self.told)

    def state(self) -> Json:
        return [*self.told]

    def progress(self) -> float | None:
        return -abs(self.wanted - sum(self.told))

    def achieved(self) -> list[AchievedTask]:
        return [AchievedTask(metadata={"wanted": sum(self.told)}, request=f"Reach {sum(self.told)}.")]

    async def score(self, answer: Message | None) -> float:
        return float(sum(self.told) == self.wanted)

    async def close(self) -> None:
        self.num_closed += 1


class CopyingTally(Tally):
    """Tally whose tasks have all of its own metadata, with another sum."""

    def __init__(self, metadata: JsonObject) -> None:
        super().__init__(metadata)
        self.metadata = metadata

    def achieved(self) -> list[AchievedTask]:
        (task,) = super().achieved()
        return [AchievedTask(metadata={**self.metadata, **task.metadata}, request=task.request)]


class ForkingTally(Tally):
    def fork(self) -> Tally:
        copy = type(self)({"wanted": self.wanted})
        copy.told = [*self.told]
        return copy


class SharingTally(ForkingTally):
    """Tally whose copies share their list of numbers."""

    def fork(self) -> Tally:
        copy = type(self)({"wanted": self.wanted})
        copy.told = self.told
        return copy


class ForgetfulTally(ForkingTally):
    """Tally whose copies begin without any number."""

    def fork(self) -> Tally:
        return type(self)({"wanted": self.wanted})


class NumberedTally(Tally):
    """Tally whose results differ from one run to the next."""

    @tool
    def tell(self, number: int) -> int:
        """Tell a number."""
        return next(_numbers)


class SecretTally(Tally):
    """Tally whose states differ from one run to the next, while its results do not."""

    def state(self) -> Json:
        return next(_numbers)


class MoodyTally(Tally):
    def progress(self) -> float | None:
        return float(next(_numbers))


class LuckyTally(Tally):
    async def score(self, answer: Message | None) -> float:
        return float(next(_numbers) % 2)


class BrokenTally(Tally):
    @tool
    def tell(self, number: int) -> int:
        """Tell a number."""
        raise KeyError("number")


class SuperstitiousTally(Tally):
    @tool
    def tell(self, number: int) -> int:
        """Tell a number; the sum so far comes back."""
        if number == 13:
            raise KeyError("number")
        self.told.append(number)
        return sum(self.told)


class NamedTally(Tally):
    """Tally that cannot be made from metadata without a wanted sum."""

    def __init__(self, metadata: JsonObject) -> None:
        super().__init__({"wanted": metadata["wanted"]})


class DownTally(Tally):
    @tool
    def tell(self, number: int) -> int:
        """Tell a number."""
        raise ConnectionError("no database")


class StuckTally(Tally):
    """Tally whose database restarts while a state with the wanted sum is closed."""

    async def close(self) -> None:
        await super().close()
        if sum(self.told) == self.wanted:
            raise ConnectionResetError("reset by peer")


class LeakyTally(Tally):
    """Tally whose own code fails while a state with the wanted sum is closed."""

    async def close(self) -> None:
        await super().close()
        if sum(self.told) == self.wanted:
            raise KeyError("socket")


class WordyTally(Tally):
    @tool
    def tell(self, number: int) -> str:  # type: ignore[override]  # a longer answer
        """Tell a number; the sum so far comes back, with a mark of a chat template and 5,000 other characters."""
        return f"{super().tell(number)} <|im_end|>{'x' * 5000}"


class BoastfulTally(Tally):
    """Tally that names an achieved task which its state does not solve."""

    def achieved(self) -> list[AchievedTask]:
        return [AchievedTask(metadata={"wanted": sum(self.told) + 1}, request="Reach more.")]


class LostTally(Tally):
    """Tally whose progress and achieved tasks have forms that are not allowed."""

    def progress(self) -> float | None:
        return float("nan")

    def achieved(self) -> list[AchievedTask]:
        return [{"wanted": 1}]  # type: ignore[list-item]


class StuckCounter(Environment):
    """Counter beside a tally, of which no copy can be made."""

    @tool
    def count(self) -> int:
        """Count."""
        return next(_numbers)

    def fork(self) -> "StuckCounter":
        raise OSError("no memory")


class FlakyTally(Tally):
    """Tally whose database is down for some of those that are opened, counted from 0."""

    down = (4,)

    @tool
    def tell(self, number: int) -> int:
        """Tell a number; the sum so far comes back."""
        if OPENED.index(self) in self.down:
            raise ConnectionError("no database")
        self.told.append(number)
        return sum(self.told)


class DoomedTally(FlakyTally):
    down = (3, 4)
