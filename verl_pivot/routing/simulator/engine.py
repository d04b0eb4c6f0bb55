"""A simulated SGLang engine: continuous batching in exact steps, prefill that stalls it, a queue, a radix cache."""

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

_CLIP = 4_096
"""Tokens that SGLang reserves for a request at most (`CLIP_MAX_NEW_TOKENS`)."""
_RETRACT_STEPS = 20
_MAX_BLIND_STEPS = 32
"""Steps after which a queue that could not be admitted is looked at again: the reservation shrinks with every step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRates:
    """Seconds of a decode step: step + row * running + context * tokens in their contexts; of prefill per token.

    The defaults are roofline estimates of a 14B model in bfloat16 on one H100.
    """

    step: float = 11.5e-3
    row: float = 45e-6
    context: float = 61e-9
    prefill_token: float = 1 / 16_000
    prefill_batch: float = 12e-3
    max_prefill_tokens: int = 16_384
    reservation: float = 0.7
    """Share of the tokens that running requests may still generate that is kept free, at first."""
    least_reservation: float = 0.098
    reservation_steps: int = 600


RATES = {
    "estimated": EngineRates(),
    "measured": EngineRates(step=12.1e-3, row=4.92e-6, context=37.2e-9, prefill_token=27.8e-6, prefill_batch=43.8e-3),
}
"""Rates of a 14B model in bfloat16 on one H100: estimated, and measured (SGLang 0.5.12, random weights)."""


@dataclass(slots=True, kw_only=True, eq=False)
class EngineRequest:
    """One turn of one conversation, on an engine."""

    conversation: int
    group: int
    prompt_tokens: int
    context: int
    """Tokens of the conversation after its prompt."""
    computed: int
    """Tokens of `context` that some engine has computed before."""
    remaining: int
    """Tokens still to be generated; the engine knows their number and no scheduler does."""
    max_new: int
    start_step: int = 0

    def generated(self, step: int) -> int:
        """Tokens generated since the last prefill."""
        return step - self.start_step


@dataclass(slots=True)
class EngineCounts:
    """Everything that one engine did."""

    generated: int = 0
    prefilled: int = 0
    reprefilled: int = 0
    """Tokens of conversations, without prompts, that had been computed before."""
    retracted: int = 0
    busy_seconds: float = 0.0
    token_seconds: float = field(default=0.0)
    """Integral of the tokens in running contexts."""


class SimulatedEngine:
    """Advances from one boundary between steps to the next that matters; `next_time` says when that is."""

    def __init__(self, capacity: int, rates: EngineRates, *, has_reservation: bool) -> None:
        self.capacity = capacity
        self.rates = rates
        self.has_reservation = has_reservation
        self.queue: deque[EngineRequest] = deque()
        self.counts = EngineCounts()
        self.next_time = math.inf
        self._now = 0.0
        self._step = 0
        self._running: list[tuple[int, int, EngineRequest]] = []
        self._order = 0
        self._contexts = 0
        self._private = 0
        self._prefilling: list[EngineRequest] = []
        self._planned_steps = 0
        self._users: dict[int, int] = {}
        self._cached_of_group: dict[int, int] = {}
        self._prompt_size: dict[int, int] = {}
        self._prompts_locked = 0
        self._prompts_cached = 0
        self._cache: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._cached = 0
        self._reservation = rates.reservation

    @property
    def num_running(self) -> int:
        return len(self._running) + len(self._prefilling)

    @property
    def locked(self) -> int:
        """KV tokens that cannot be evicted."""
        return self._private + self._prompts_locked

    def submit(self, request: EngineRequest, now: float) -> None:
        """Put a turn at the end of the queue."""
        self.queue.append(request)
        if math.isinf(self.next_time):
            self._now = now
            self._plan()
        elif not self._prefilling and len(self.queue) == 1:
            self._cut_plan(now)

    def advance(self) -> list[EngineRequest]:
        """Go to `next_time`; the turns that end there."""
        finished = self._end_action()
        self._plan()
        return finished

    # ---- time

    def _seconds(self, steps: int) -> float:
        rates, running = self.rates, len(self._running)
        reads = steps * self._contexts + running * steps * (steps - 1) / 2
        return steps * (rates.step + rates.row * running) + rates.context * reads

    def _steps_until(self, seconds: float) -> int:
        """The first whole number of steps that lasts at least so long."""
        rates, running = self.rates, len(self._running)
        square = rates.context * running / 2
        linear = rates.step + rates.row * running + rates.context * self._contexts - square
        root = 2 * seconds / (linear + math.sqrt(linear * linear + 4 * square * seconds))
        return max(0, math.ceil(root - 1e-9))

    def _cut_plan(self, now: float) -> None:
        steps = min(self._planned_steps, max(1, self._steps_until(now - self._now)))
        self._planned_steps = steps
        self.next_time = self._now + self._seconds(steps)

    def _plan(self) -> None:
        """Prefill what may be admitted, else decode until something ends, memory is short or the queue is due."""
        batch, seconds = self._admit()
        if batch:
            self._prefilling = batch
            self.next_time = self._now + seconds
            return
        if not self._running:
            assert not self.queue, "an engine without work admits whatever fits it"
            self.next_time = math.inf
            self._reservation = self.rates.reservation
            return
        if self._room() < len(self._running):
            self._retract()
        steps = min(self._running[0][0] - self._step, self._room() // len(self._running))
        if self.queue:
            steps = min(steps, _MAX_BLIND_STEPS)
        self._planned_steps = max(1, steps)
        self.next_time = self._now + self._seconds(self._planned_steps)

    def _end_action(self) -> list[EngineRequest]:
        seconds = self.next_time - self._now
        self.counts.busy_seconds += seconds
        self.counts.token_seconds += seconds * self._contexts
        self._now = self.next_time
        if self._prefilling:
            for request in self._prefilling:
                self._start(request)
            self._prefilling = []
            return []
        steps, running = self._planned_steps, len(self._running)
        self._step += steps
        self._private += steps * running
        self._contexts += steps * running
        self.counts.generated += steps * running
        decay = (self.rates.reservation - self.rates.least_reservation) / self.rates.reservation_steps
        self._reservation = max(self.rates.least_reservation, self._reservation - decay * steps)
        finished = []
        while self._running and self._running[0][0] <= self._step:
            request = heapq.heappop(self._running)[2]
            self._stop(request, cached=request.context + request.generated(self._step))
            finished.append(request)
        self._evict(0)
        return finished

    # ---- requests

    def _start(self, request: EngineRequest) -> None:
        request.start_step = self._step
        self._order += 1
        heapq.heappush(self._running, (self._step + request.remaining, self._order, request))
        self._contexts += request.prompt_tokens + request.context

    def _stop(self, request: EngineRequest, *, cached: int) -> None:
        """Unlock a running request, leaving the first `cached` tokens of its conversation evictable."""
        tokens = request.context + request.generated(self._step)
        self._contexts -= request.prompt_tokens + tokens
        self._private -= tokens
        self._keep(request, cached)
        self._unlock_prompt(request.group)

    def _keep(self, request: EngineRequest, tokens: int) -> None:
        self._cache[request.conversation] = (request.group, tokens)
        self._cache.move_to_end(request.conversation)
        self._cached += tokens
        self._cached_of_group[request.group] = self._cached_of_group.get(request.group, 0) + 1

    def _take(self, conversation: int) -> int:
        """What the cache has of a conversation, which it no longer has then."""
        found = self._cache.pop(conversation, None)
        if found is None:
            return 0
        self._cached -= found[1]
        self._cached_of_group[found[0]] -= 1
        return found[1]

    def _lock_prompt(self, request: EngineRequest) -> int:
        """Tokens of the prompt that have to be computed."""
        group, missing = request.group, 0
        if self._users.get(group, 0) == 0:
            if group in self._prompt_size:
                self._prompts_cached -= request.prompt_tokens
            else:
                self._prompt_size[group] = missing = request.prompt_tokens
            self._prompts_locked += request.prompt_tokens
        self._users[group] = self._users.get(group, 0) + 1
        return missing

    def _unlock_prompt(self, group: int) -> None:
        self._users[group] -= 1
        if self._users[group] == 0:
            self._prompts_locked -= self._prompt_size[group]
            self._prompts_cached += self._prompt_size[group]

    # ---- memory

    def _room(self) -> int:
        return self.capacity - self.locked

    def _evict(self, needed: int) -> None:
        """Drop the conversations that were used least recently until `needed` tokens are free beside what is cached."""
        while self.locked + self._cached + self._prompts_cached + needed > self.capacity and self._cache:
            conversation, (group, _) = next(iter(self._cache.items()))
            self._take(conversation)
            if self._cached_of_group[group] == 0 and self._users.get(group, 0) == 0:
                self._prompts_cached -= self._prompt_size.pop(group)

    def _admit(self) -> tuple[list[EngineRequest], float]:
        """From the front of the queue, as SGLang's PrefillAdder: the batch and how long its prefill takes."""
        batch: list[EngineRequest] = []
        tokens = 0
        reserved = self._reserved() if self.queue else 0.0
        while self.queue:
            request = self.queue[0]
            hit = self._cache.get(request.conversation, (0, 0))[1]
            extend = request.context - hit
            if request.group not in self._prompt_size:
                extend += request.prompt_tokens
            if batch and tokens + extend > self.rates.max_prefill_tokens:
                break
            if not self._fits(request, reserved, len(batch)):
                break
            self.queue.popleft()
            tokens += extend
            reserved += min(request.max_new, _CLIP)
            batch.append(request)
            self._lock(request, hit)
        if not batch:
            return [], 0.0
        self._evict(0)
        self.counts.prefilled += tokens
        return batch, tokens * self.rates.prefill_token + self.rates.prefill_batch

    def _reserved(self) -> float:
        """For what running requests may still generate."""
        step = self._step
        return self._reservation * sum(min(each.max_new - each.generated(step), _CLIP) for _, _, each in self._running)

    def _fits(self, request: EngineRequest, reserved: float, num_before: int) -> bool:
        num_running = len(self._running) + num_before
        locked = self.locked + request.context
        if self._users.get(request.group, 0) == 0:
            locked += request.prompt_tokens
        if num_running == 0:
            return True  # whatever it needs, nothing will make more room
        if not self.has_reservation:
            return locked + num_running + 1 <= self.capacity
        return locked + reserved + min(request.max_new, _CLIP) <= self.capacity

    def _lock(self, request: EngineRequest, hit: int) -> None:
        self._take(request.conversation)
        self._lock_prompt(request)
        self._private += request.context
        self.counts.reprefilled += max(0, request.computed - hit)
        request.computed = request.context

    def _retract(self) -> None:
        """Return requests to the queue, the one that generated least first, until the others can go on a while."""
        by_output = sorted(self._running, key=lambda entry: entry[2].generated(self._step))
        while len(by_output) > 1 and self._room() < _RETRACT_STEPS * len(by_output):
            request = by_output.pop(0)[2]
            generated = request.generated(self._step)
            self._stop(request, cached=request.context)
            request.context += generated
            request.computed = request.context
            request.remaining -= generated
            request.max_new = max(1, request.max_new - generated)
            self.queue.append(request)
            self.counts.retracted += 1
        self._running = by_output
        heapq.heapify(self._running)
        generated = sum(entry[2].generated(self._step) for entry in by_output)
        allowed = sum(entry[2].max_new for entry in by_output)
        self._reservation = min(1.0, (generated + _RETRACT_STEPS * len(by_output)) / (allowed + 1))
