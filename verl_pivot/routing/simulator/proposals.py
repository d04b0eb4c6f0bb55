"""Routing policies for simulations only: verl's own router with changes that were proposed to verl, or one of ours."""

from verl_pivot.routing.baselines import LeastInflight
from verl_pivot.routing.routing_policy import TurnRequest


class AffinityMargin(LeastInflight):
    """verl's router, with conversations that leave a server which has clearly more requests than the idlest one.

    Source: the proposal verl-project/verl #7435, `affinity_break_margin`, with the margin of its measurements.
    """

    _margin = 2

    def _stays(self, server: str) -> bool:
        return self._inflight[server] - min(self._inflight.values()) <= self._margin


class ImbalanceGate(LeastInflight):
    """verl's router, with conversations that leave their server while the busiest and the idlest server are far apart.

    Source: the proposal verl-project/verl #6533. The absolute threshold of 8 requests is the smallest of those measured
    there that did not slow verl down. The rule and its relative threshold are those of SGLang's gateway.
    """

    _balance_abs_threshold = 8
    _balance_rel_threshold = 1.5

    def _stays(self, server: str) -> bool:
        most, least = max(self._inflight.values()), min(self._inflight.values())
        return most - least <= self._balance_abs_threshold or most <= self._balance_rel_threshold * least


class TogetherLeastInflight(LeastInflight):
    """verl's router, with up to 8 rollouts of a prompt that begin on one server and share the prompt's KV there.

    It has nothing else of `kv_forecast`, so it shows how much of the gain comes from shared prompts alone.
    """

    _block_size = 8

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[str, tuple[str, int]] = {}
        """{prompt: the server of its newest block, and the rollouts that began in that block}."""

    def _choose(self, request: TurnRequest) -> str:
        server, num_rollouts = self._blocks.get(request.group, ("", self._block_size))
        if num_rollouts == self._block_size or server not in self._inflight:
            server, num_rollouts = super()._choose(request), 0
        self._blocks[request.group] = (server, num_rollouts + 1)
        return server
