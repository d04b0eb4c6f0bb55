"""Routing policy `oracle`, for simulations only: `kv_forecast` with every response length known in advance."""

from collections.abc import Mapping, Sequence

import numpy as np

from verl_pivot.routing.kv_forecast import ForecastOptions, KvForecast
from verl_pivot.routing.kv_forecast_state import ServerState
from verl_pivot.routing.routing_policy import Placement, TurnRequest


class Oracle(KvForecast):
    """Longest rollouts first, by an exact forecast of each server's fullest moment. Not a bound: others can beat it."""

    def __init__(self, lengths: Mapping[str, int], *, budget: int) -> None:
        """
        Args:
            lengths: {conversation: tokens of its response} of the one step that it schedules.
            budget: Tokens that a response may have.
        """
        super().__init__(budget=budget, options=ForecastOptions(unit=1, light_unit=1))
        self._ends = lengths
        self._shortest_first = sorted(lengths, key=lengths.__getitem__)
        self._num_waited = 0

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        if request.conversation in self._places:
            return super().acquire(request)
        self._waiting.add(request)
        self._num_waited += 1
        return self._admit_anywhere(request.now) if self._num_waited == len(self._ends) else ()

    def _first(self) -> TurnRequest:
        while (request := self._waiting.get(self._shortest_first[-1])) is None:
            self._shortest_first.pop()
        return request

    def _peak(self, server: ServerState, request: TurnRequest, now: float) -> float:
        tokens = np.array([*server.tokens(now), 0.0])
        ends = np.array([self._ends[name] for name in (*server.live, request.conversation)])
        left = np.maximum(ends - tokens, 0.0)
        order = np.argsort(-left)
        there = np.arange(1, len(order) + 1)
        return float((np.cumsum(tokens[order]) + there * left[order]).max())
