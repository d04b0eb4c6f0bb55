"""Conversations of a step and a routing policy -> SimulatedStep: how long its rollouts take on simulated engines."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from verl_pivot.routing.routing_policy import ConversationEnd, Placement, RoutingPolicy, TurnRelease, TurnRequest
from verl_pivot.routing.simulator.engine import EngineRates, EngineRequest, SimulatedEngine
from verl_pivot.routing.simulator.workload import Scenario, SimulatedConversation


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """Duration and costs of one simulated step."""

    num_rollouts: int
    makespan_seconds: float
    """Seconds until the last rollout ends."""
    ninety_percent_seconds: float
    """Seconds until nine of ten rollouts have ended."""
    generated_tokens: int
    recomputed_tokens: int
    """Tokens of conversations that were computed again, prompts not included."""
    num_retracted: int
    """Retractions of running requests because an engine's memory was short."""
    num_moves: int
    """Turns that went to another engine than the turn before."""
    utilisation: float
    """Share of the engines' time in which they had work."""


_DEATH = -2
"""Engine number of the event at which the first engine dies."""


class _Progress:
    """How far one conversation has come, and where it runs."""

    __slots__ = ("context", "conversation", "server", "turn")

    def __init__(self, conversation: SimulatedConversation) -> None:
        self.conversation = conversation
        self.turn = 0
        """Index of its next turn."""
        self.context = conversation.context_tokens
        """Tokens after its prompt."""
        self.server: int | None = None
        """Engine of its newest turn."""


class Simulation:
    """One step, simulated event by event: the events of engines, and the ends of conversations' waits for tools."""

    def __init__(
        self,
        scenario: Scenario,
        conversations: Sequence[SimulatedConversation],
        policy: RoutingPolicy,
        rates: EngineRates,
    ) -> None:
        self._scenario = scenario
        self._policy = policy
        for number in range(scenario.num_engines):
            policy.add_server(str(number), scenario.capacity, 0.0, max_running=scenario.max_running)
        self._engines = [
            SimulatedEngine(
                scenario.capacity,
                rates.slowed(scenario.slow_factor) if number < scenario.num_slow_engines else rates,
                has_reservation=scenario.has_reservation,
                max_running=scenario.max_running,
            )
            for number in range(scenario.num_engines)
        ]
        self._progress = {str(each.id): _Progress(each) for each in conversations}
        self._events: list[tuple[float, int, int, str]] = []
        """Heap of (time, order, engine, ""), or (time, order, -1, conversation) where a wait for tools ends."""
        self._order = itertools.count()
        self._next_times = [float("inf")] * scenario.num_engines
        """[num_engines] time of each engine's event in the heap; an engine's older events are ignored."""
        self._ended: list[SimulatedConversation] = []
        """Rollouts in the order in which they ended."""
        self._ended_at: list[float] = []
        """[num_ended] times at which they ended, ascending."""
        self._num_moves = 0
        self._lost_tokens = 0
        """Tokens of turns that were generated on an engine that died, and had to be generated again."""

    def run(self) -> SimulatedStep:
        """Simulate the whole step; every rollout asks for an engine at its beginning."""
        self.run_until(lambda ended: False)
        return self._outcome()

    def run_until(self, is_enough: Callable[[Sequence[SimulatedConversation]], bool]) -> float:
        """Simulate the step until enough rollouts have ended, or all of them; returns the seconds that it takes.

        Args:
            is_enough: Function that gets the rollouts that have just ended; the step ends when it returns True.
        """
        now = 0.0
        for name in self._progress:
            self._acquire(name, 0.0)
        if self._scenario.dies_at_seconds:
            heapq.heappush(self._events, (self._scenario.dies_at_seconds, next(self._order), _DEATH, ""))
        while self._events:
            num_ended = len(self._ended)
            now, _, engine, name = heapq.heappop(self._events)
            if engine == _DEATH:
                self._kill_first_engine(now)
            elif name:
                self._acquire(name, now)
            elif now == self._engines[engine].next_time:
                self._advance(engine, now)
            if len(self._ended) > num_ended and is_enough(self._ended[num_ended:]):
                break
        return now

    def interrupt(self, now: float) -> list[SimulatedConversation]:
        """Stop all engines; returns the rollouts that have not ended, without the part that is done.

        Waits for tools count as over, and decode steps that run are finished.
        """
        remaining = {
            str(request.conversation): max(1, request.remaining)
            for engine in self._engines
            for request in engine.interrupt(now)
        }
        ended = {str(each.id) for each in self._ended}
        return [_rest(progress, remaining.get(name)) for name, progress in self._progress.items() if name not in ended]

    @property
    def generated_tokens(self) -> int:
        return sum(engine.counts.generated_tokens for engine in self._engines)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of conversations that were computed again, prompts not included."""
        return sum(engine.counts.recomputed_tokens for engine in self._engines)

    def _acquire(self, name: str, now: float) -> None:
        progress = self._progress[name]
        conversation = progress.conversation
        request = TurnRequest(
            conversation=name,
            group=str(conversation.group),
            prompt_tokens=conversation.prompt_tokens,
            context_tokens=progress.context,
            is_only_turn=self._scenario.has_one_turn,
            now=now,
        )
        self._place(self._policy.acquire(request), now)

    def _place(self, placements: Sequence[Placement], now: float) -> None:
        for name, server in placements:
            progress, number = self._progress[name], int(server)
            conversation = progress.conversation
            observed = conversation.turns[progress.turn - 1].observed if progress.turn else 0
            if progress.server not in (None, number):
                self._num_moves += 1
            progress.server = number
            self._engines[number].submit(
                EngineRequest(
                    conversation=conversation.id,
                    group=conversation.group,
                    prompt_tokens=conversation.prompt_tokens,
                    context=progress.context,
                    computed=progress.context - observed,
                    remaining=conversation.turns[progress.turn].generated,
                    max_new=self._max_new(progress),
                ),
                now,
            )
            self._schedule(number)

    def _max_new(self, progress: _Progress) -> int:
        """Maximum number of tokens of a turn that its engine is told; verl allows each turn all tokens left."""
        if self._scenario.has_exact_limits:
            return progress.conversation.turns[progress.turn].generated
        return max(1, self._scenario.budget - progress.context)

    def _schedule(self, number: int) -> None:
        time = self._engines[number].next_time
        if time != self._next_times[number]:
            self._next_times[number] = time
            if time != float("inf"):
                heapq.heappush(self._events, (time, next(self._order), number, ""))

    def _advance(self, number: int, now: float) -> None:
        finished = self._engines[number].advance()
        self._next_times[number] = float("inf")  # an engine without a prefill's base time may go on at the same time
        self._schedule(number)
        for request in finished:
            self._end_turn(str(request.conversation), number, now)

    def _kill_first_engine(self, now: float) -> None:
        """Let the first engine die. Clients repeat the turns that ran there, from their beginning."""
        lost = self._engines[0].stop()
        self._schedule(0)
        self._place(self._policy.remove_server("0", now), now)
        for request in lost:
            progress = self._progress[str(request.conversation)]
            self._lost_tokens += progress.conversation.turns[progress.turn].generated - request.remaining
            self._acquire(str(request.conversation), now)

    def _end_turn(self, name: str, number: int, now: float) -> None:
        progress = self._progress[name]
        turn = progress.conversation.turns[progress.turn]
        progress.turn += 1
        is_last = progress.turn == len(progress.conversation.turns)
        progress.context += turn.generated
        reports_end = self._scenario.reports_end
        release = TurnRelease(conversation=name, server=str(number), now=now, may_be_last=not reports_end)
        self._place(self._policy.release(release), now)
        if is_last:
            self._ended.append(progress.conversation)
            self._ended_at.append(now)
            if reports_end:
                end = ConversationEnd(conversation=name, response_tokens=progress.context, now=now)
                self._place(self._policy.end(end), now)
            return
        progress.context += turn.observed
        heapq.heappush(self._events, (now + turn.wait_seconds, next(self._order), -1, name))

    def _outcome(self) -> SimulatedStep:
        drawn = sum(turn.generated for each in self._progress.values() for turn in each.conversation.turns)
        counts = [engine.counts for engine in self._engines]
        generated = self.generated_tokens
        assert len(self._ended_at) == len(self._progress), (
            f"{len(self._ended_at)} of {len(self._progress)} rollouts ended"
        )
        assert generated == drawn + self._lost_tokens, (
            f"{generated} tokens generated, {drawn} drawn and {self._lost_tokens} lost"
        )
        makespan = max(self._ended_at)
        return SimulatedStep(
            num_rollouts=len(self._progress),
            makespan_seconds=makespan,
            ninety_percent_seconds=sorted(self._ended_at)[int(0.9 * (len(self._ended_at) - 1))],
            generated_tokens=generated,
            recomputed_tokens=self.recomputed_tokens,
            num_retracted=sum(each.num_retracted for each in counts),
            num_moves=self._num_moves,
            utilisation=sum(each.busy_seconds for each in counts) / (makespan * len(counts)),
        )


def _rest(progress: _Progress, remaining: int | None) -> SimulatedConversation:
    """The rest of a rollout. `remaining` is the number of tokens left in its turn; None between two turns."""
    first, *later = progress.conversation.turns[progress.turn :]
    left = first.generated if remaining is None else remaining
    return replace(
        progress.conversation,
        turns=(replace(first, generated=left), *later),
        context_tokens=progress.context + first.generated - left,
    )


def simulate(
    scenario: Scenario,
    conversations: Sequence[SimulatedConversation],
    policy: RoutingPolicy,
    rates: EngineRates | None = None,
) -> SimulatedStep:
    """Simulate the rollouts of one step.

    Args:
        scenario: The engines.
        conversations: The rollouts. The routing policy learns of them only what a router would.
        policy: A new routing policy; its servers get the names "0", "1", ...
        rates: Speeds of the engines; the estimated ones by default.
    """
    return Simulation(scenario, conversations, policy, rates or EngineRates()).run()
