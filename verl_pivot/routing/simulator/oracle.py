"""Routing policy `oracle`, for simulations only: `kv_forecast` with every response length known in advance."""

from collections.abc import Mapping, Sequence

import numpy as np

from verl_pivot.routing.kv_forecast import ForecastOptions, KvForecast
from verl_pivot.routing.kv_forecast_state import ServerState
from verl_pivot.routing.routing_policy import Placement, TurnRequest


class Oracle(KvForecast):
    """Admits the longest rollouts first, by an exact forecast of the most KV tokens that a server will hold at once.

    It is no lower bound: other routing policies can be faster.
    """

    def __init__(self, lengths: Mapping[str, int], *, budget: int) -> None:
        """
        Args:
            lengths: {conversation: tokens of its response}, for every conversation of the step.
            budget: Maximum number of tokens of a response.
        """
        super().__init__(budget=budget, prior_returning=1.0, options=ForecastOptions(block_size=1, light_block_size=1))
        self._lengths_in_advance = lengths
        self._shortest_first = sorted(lengths, key=lengths.__getitem__)
        self._num_requested = 0

    def acquire(self, request: TurnRequest) -> Sequence[Placement]:
        if request.conversation in self._places:
            return super().acquire(request)
        self._waiting.add(request)
        self._num_requested += 1
        return self._admit_anywhere(request.now) if self._num_requested == len(self._lengths_in_advance) else ()

    def _first(self) -> TurnRequest:
        while (request := self._waiting.get(self._shortest_first[-1])) is None:
            self._shortest_first.pop()
        return request

    def _peak(self, server: ServerState, request: TurnRequest, now: float) -> float:
        tokens = np.array([*server.tokens(now), 0.0])
        lengths = np.array([self._lengths_in_advance[name] for name in (*server.live, request.conversation)])
        left = np.maximum(lengths - tokens, 0.0)
        order = np.argsort(-left)
        num_running = np.arange(1, len(order) + 1)
        # The peak is just before a rollout ends: it and all rollouts with more tokens left have grown by its rest.
        return float((np.cumsum(tokens[order]) + num_running * left[order]).max())
