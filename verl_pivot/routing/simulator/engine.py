"""SimulatedEngine, a simulated SGLang engine: EngineRequests -> the times at which they end, and EngineCounts."""

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, replace

_MAX_RESERVED_TOKENS = 4_096
"""Maximum number of tokens that SGLang reserves for one request (its `CLIP_MAX_NEW_TOKENS`)."""
_RETRACT_STEPS = 20
"""Number of decode steps per remaining request in SGLang's estimate of the reservation after a retraction (its
`SGLANG_RETRACT_DECODE_STEPS`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRates:
    """Speeds of an engine, in seconds, and how it reserves memory.

    The defaults are roofline estimates of a 14B model in bfloat16 on one H100, and SGLang's defaults.
    """

    step_seconds: float = 11.5e-3
    """Fixed seconds of a decode step, to which those of its requests and their contexts are added."""
    request_seconds: float = 45e-6
    """Seconds that each running request adds to a decode step."""
    context_token_seconds: float = 61e-9
    """Seconds that each token in the context of a running request adds to a decode step."""
    prefill_token_seconds: float = 1 / 16_000
    """Seconds of prefill per token."""
    prefill_batch_seconds: float = 12e-3
    """Fixed seconds of each prefill, to which those of its tokens are added."""
    max_prefill_tokens: int = 16_384
    """Maximum number of tokens in one prefill."""
    reservation: float = 0.7
    """Initial share of the tokens that running requests may still generate for which room is reserved."""
    min_reservation: float = 0.098
    """Share to which `reservation` falls linearly within `reservation_steps` decode steps."""
    reservation_steps: int = 600

    def slowed(self, factor: float) -> "EngineRates":
        """The rates of an engine that needs `factor` times as long for everything."""
        return replace(
            self,
            step_seconds=factor * self.step_seconds,
            request_seconds=factor * self.request_seconds,
            context_token_seconds=factor * self.context_token_seconds,
            prefill_token_seconds=factor * self.prefill_token_seconds,
            prefill_batch_seconds=factor * self.prefill_batch_seconds,
        )


RATES = {
    "estimated": EngineRates(),
    "measured": EngineRates(
        step_seconds=12.1e-3,
        request_seconds=4.92e-6,
        context_token_seconds=37.2e-9,
        prefill_token_seconds=27.8e-6,
        prefill_batch_seconds=43.8e-3,
    ),
}
"""Rates of a 14B model in bfloat16 on one H100: estimated, and measured (SGLang 0.5.12, random weights)."""


@dataclass(slots=True, kw_only=True, eq=False)
class EngineRequest:
    """One turn of a conversation, as an engine sees it."""

    conversation: int
    group: int
    prompt_tokens: int
    context: int
    """Tokens of the conversation after its prompt, before this turn."""
    computed: int
    """Tokens of `context` whose KV some engine has computed before."""
    remaining: int
    """Tokens still to be generated. Neither routing policies nor the engine's admission use this number."""
    max_new: int
    """Maximum number of tokens that the turn may still generate, for which the engine reserves room."""
    start_step: int = 0
    """Number of the engine's decode steps before this request started."""

    def generated(self, step: int) -> int:
        """Tokens generated since its last prefill; `step` is the number of decode steps of the engine so far."""
        return step - self.start_step


@dataclass(slots=True)
class EngineCounts:
    """Totals of one engine since its start."""

    generated_tokens: int = 0
    prefilled_tokens: int = 0
    recomputed_tokens: int = 0
    """Prefilled tokens of conversations, prompts not included, that some engine had computed before."""
    num_retracted: int = 0
    """Running requests that were returned to the queue because memory was short."""
    busy_seconds: float = 0.0


class SimulatedEngine:
    """An engine with continuous batching, a queue and a radix cache, simulated from event to event.

    An event is the end of a prefill, or of the decode steps after which a request ends or memory is short. `next_time`
    is the time of the next event in seconds, infinite for an engine without work.

    As in SGLang 0.5.12, a batch that could not take the first request of the queue counts as full until a request ends
    or is retracted; requests of one prefill share only prompts that were cached before it; and a retraction ends as
    soon as the next decode step fits. Differs from SGLang: prefills are never chunked, and a running request's prompt
    is either all cached or not at all.
    """

    def __init__(self, capacity: int, rates: EngineRates, *, has_reservation: bool, max_running: int = 1_024) -> None:
        """
        Args:
            capacity: Tokens that the KV cache holds.
            rates: Speeds of the engine.
            has_reservation: Whether a request is admitted only if there is room for the tokens that it may generate.
            max_running: Maximum number of requests that run at once (SGLang's `max_running_requests`).
        """
        self.capacity = capacity
        self.max_running = max_running
        self.rates = rates
        self.has_reservation = has_reservation
        self.queue: deque[EngineRequest] = deque()
        self.counts = EngineCounts()
        self.next_time = math.inf
        self._now = 0.0
        self._step = 0
        """Decode steps since the engine's start."""
        self._running: list[tuple[int, int, EngineRequest]] = []
        """Heap of (step at which the request ends, order of its start, request)."""
        self._num_started = 0
        self._context_tokens = 0
        """Tokens in the contexts of running requests, each with its prompt: what a decode step reads."""
        self._conversation_tokens = 0
        """KV tokens of the running requests' conversations, prompts not included."""
        self._prefilling: list[EngineRequest] = []
        self._is_full = False
        """Whether the first request of the queue did not fit and none has ended since (SGLang's `batch_is_full`)."""
        self._planned_steps = 0
        """Decode steps until `next_time`."""
        self._num_running_in_group: dict[int, int] = {}
        self._num_cached_in_group: dict[int, int] = {}
        self._prompt_tokens: dict[int, int] = {}
        """{group: KV tokens of its prompt}, of the prompts that the engine holds."""
        self._locked_prompt_tokens = 0
        self._cached_prompt_tokens = 0
        """KV tokens of prompts that no running request uses."""
        self._cache: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """{conversation: (group, cached tokens)}, the least recently used first."""
        self._cached_tokens = 0
        self._reservation = rates.reservation

    @property
    def num_running(self) -> int:
        return len(self._running) + len(self._prefilling)

    @property
    def locked(self) -> int:
        """KV tokens that cannot be evicted."""
        return self._conversation_tokens + self._locked_prompt_tokens

    def submit(self, request: EngineRequest, now: float) -> None:
        """Put a turn at the end of the queue."""
        self.queue.append(request)
        if math.isinf(self.next_time):
            self._now = now
            self._plan()
        elif not self._prefilling and not self._is_full:
            self._cut_plan(now)

    def advance(self) -> list[EngineRequest]:
        """Go to `next_time`; returns the turns that end then."""
        finished = self._finish_plan()
        self._plan()
        return finished

    # ---- time

    def _seconds(self, steps: int) -> float:
        """Seconds of the next decode steps."""
        rates, running = self.rates, len(self._running)
        reads = steps * self._context_tokens + running * steps * (steps - 1) / 2
        return steps * (rates.step_seconds + rates.request_seconds * running) + rates.context_token_seconds * reads

    def _steps_until(self, seconds: float) -> int:
        """The smallest number of decode steps that last at least `seconds`."""
        rates, running = self.rates, len(self._running)
        square = rates.context_token_seconds * running / 2
        linear = (
            rates.step_seconds
            + rates.request_seconds * running
            + rates.context_token_seconds * self._context_tokens
            - square
        )
        root = 2 * seconds / (linear + math.sqrt(linear * linear + 4 * square * seconds))
        return max(0, math.ceil(root - 1e-9))

    def _cut_plan(self, now: float) -> None:
        """Let the planned decode steps end with the first one after `now`, at which a request came."""
        steps = min(self._planned_steps, max(1, self._steps_until(now - self._now)))
        self._planned_steps = steps
        self.next_time = self._now + self._seconds(steps)

    def _plan(self) -> None:
        """Plan the next event: a prefill if requests can be admitted, else decode steps."""
        batch, seconds = self._admit()
        if batch:
            self._prefilling = batch
            self.next_time = self._now + seconds
            return
        if not self._running:
            assert not self.queue, "an idle engine left requests in its queue"
            self.next_time = math.inf
            self._reservation = self.rates.reservation
            return
        if self._room() < len(self._running):
            self._retract()
        steps = min(self._running[0][0] - self._step, self._room() // len(self._running))
        self._planned_steps = max(1, steps)
        self.next_time = self._now + self._seconds(self._planned_steps)

    def _finish_plan(self) -> list[EngineRequest]:
        """End the planned prefill or decode steps; returns the turns that end with them."""
        seconds = self.next_time - self._now
        self.counts.busy_seconds += seconds
        self._now = self.next_time
        if self._prefilling:
            for request in self._prefilling:
                self._start(request)
            self._prefilling = []
            return []
        steps, running = self._planned_steps, len(self._running)
        self._step += steps
        self._conversation_tokens += steps * running
        self._context_tokens += steps * running
        self.counts.generated_tokens += steps * running
        decay = (self.rates.reservation - self.rates.min_reservation) / self.rates.reservation_steps
        self._reservation = max(self.rates.min_reservation, self._reservation - decay * steps)
        finished = []
        while self._running and self._running[0][0] <= self._step:
            request = heapq.heappop(self._running)[2]
            self._stop(request, cached=request.context + request.generated(self._step))
            finished.append(request)
        if finished:
            self._is_full = False
        self._evict()
        return finished

    def stop(self) -> list[EngineRequest]:
        """Stop for ever, like a server that dies; returns the requests that ran or waited, with their tokens left."""
        for _, _, request in self._running:
            request.remaining -= request.generated(self._step)
        lost = [*(request for _, _, request in self._running), *self._prefilling, *self.queue]
        self._running, self._prefilling, self.next_time = [], [], math.inf
        self.queue.clear()
        return lost

    def interrupt(self, now: float) -> list[EngineRequest]:
        """Stop for ever after the decode step that runs at `now`; returns the requests that ran or waited."""
        finished = []
        if self._running and not self._prefilling:
            self._cut_plan(now)
            finished = self._finish_plan()
        for request in finished:
            request.remaining = 0
        return [*finished, *self.stop()]

    # ---- requests

    def _start(self, request: EngineRequest) -> None:
        """Let a prefilled request generate from the next decode step on."""
        request.start_step = self._step
        self._num_started += 1
        heapq.heappush(self._running, (self._step + request.remaining, self._num_started, request))
        self._context_tokens += request.prompt_tokens + request.context

    def _stop(self, request: EngineRequest, *, cached: int) -> None:
        """Stop a running request; the first `cached` tokens of its conversation go to the radix cache."""
        tokens = request.context + request.generated(self._step)
        self._context_tokens -= request.prompt_tokens + tokens
        self._conversation_tokens -= tokens
        self._cache_conversation(request, cached)
        self._unlock_prompt(request.group)

    def _cache_conversation(self, request: EngineRequest, tokens: int) -> None:
        """Put the first tokens of a conversation into the radix cache."""
        self._cache[request.conversation] = (request.group, tokens)
        self._cache.move_to_end(request.conversation)
        self._cached_tokens += tokens
        self._num_cached_in_group[request.group] = self._num_cached_in_group.get(request.group, 0) + 1

    def _uncache(self, conversation: int) -> None:
        """Remove a conversation from the radix cache, if it is there."""
        if conversation in self._cache:
            group, tokens = self._cache.pop(conversation)
            self._cached_tokens -= tokens
            self._num_cached_in_group[group] -= 1

    def _lock_prompt(self, request: EngineRequest) -> None:
        """Keep the prompt of a request from being evicted while a request of its group runs."""
        group = request.group
        if self._num_running_in_group.get(group, 0) == 0:
            if group in self._prompt_tokens:
                self._cached_prompt_tokens -= request.prompt_tokens
            else:
                self._prompt_tokens[group] = request.prompt_tokens
            self._locked_prompt_tokens += request.prompt_tokens
        self._num_running_in_group[group] = self._num_running_in_group.get(group, 0) + 1

    def _unlock_prompt(self, group: int) -> None:
        self._num_running_in_group[group] -= 1
        if self._num_running_in_group[group] == 0:
            self._locked_prompt_tokens -= self._prompt_tokens[group]
            self._cached_prompt_tokens += self._prompt_tokens[group]

    # ---- memory

    def _room(self) -> int:
        """KV tokens that are free or can be evicted."""
        return self.capacity - self.locked

    def _evict(self) -> None:
        """Drop the least recently used conversations from the radix cache until the rest fits the KV cache."""
        while self.locked + self._cached_tokens + self._cached_prompt_tokens > self.capacity and self._cache:
            conversation, (group, _) = next(iter(self._cache.items()))
            self._uncache(conversation)
            if self._num_cached_in_group[group] == 0 and self._num_running_in_group.get(group, 0) == 0:
                self._cached_prompt_tokens -= self._prompt_tokens.pop(group)

    def _admit(self) -> tuple[list[EngineRequest], float]:
        """Admit requests from the front of the queue; returns them and the seconds of their prefill.

        Source: SGLang's PrefillAdder.
        """
        batch: list[EngineRequest] = []
        tokens = duplicates = 0
        reserved = self._reserved() if self.queue and not self._is_full else 0.0
        cached_prompts = set(self._prompt_tokens) if self.queue and not self._is_full else set()
        while self.queue and not self._is_full:
            request = self.queue[0]
            hit = self._cache.get(request.conversation, (0, 0))[1]
            extend = request.context - hit
            if request.group not in cached_prompts:
                extend += request.prompt_tokens
            if batch and tokens + extend > self.rates.max_prefill_tokens:
                break
            if not self._fits(request, reserved + duplicates, len(batch)):
                self._is_full = True
                break
            self.queue.popleft()
            if request.group in self._prompt_tokens and request.group not in cached_prompts:
                duplicates += request.prompt_tokens  # until the prefill ends
            tokens += extend
            reserved += min(request.max_new, _MAX_RESERVED_TOKENS)
            batch.append(request)
            self._lock(request, hit)
        if not batch:
            return [], 0.0
        self._evict()
        self.counts.prefilled_tokens += tokens
        return batch, tokens * self.rates.prefill_token_seconds + self.rates.prefill_batch_seconds

    def _reserved(self) -> float:
        """KV tokens that are reserved for what running requests may still generate."""
        step = self._step
        return self._reservation * sum(
            min(each.max_new - each.generated(step), _MAX_RESERVED_TOKENS) for _, _, each in self._running
        )

    def _fits(self, request: EngineRequest, reserved: float, num_before: int) -> bool:
        """Whether a request can be admitted after `num_before` others of the same batch."""
        num_running = len(self._running) + num_before
        if num_running >= self.max_running:
            return False
        locked = self.locked + request.context
        if self._num_running_in_group.get(request.group, 0) == 0:
            locked += request.prompt_tokens
        if num_running == 0:
            return True  # an empty engine has all the room there can be
        if not self.has_reservation:
            return locked + num_running + 1 <= self.capacity
        return locked + reserved + min(request.max_new, _MAX_RESERVED_TOKENS) <= self.capacity

    def _lock(self, request: EngineRequest, hit: int) -> None:
        """Hold the KV of an admitted request; the radix cache had `hit` tokens of its conversation."""
        self._uncache(request.conversation)
        self._lock_prompt(request)
        self._conversation_tokens += request.context
        self.counts.recomputed_tokens += max(0, request.computed - hit)
        request.computed = request.context

    def _retract(self) -> None:
        """Return the requests with the fewest generated tokens to the queue, until the rest can make a decode step."""
        self._is_full = False
        by_output = sorted(self._running, key=lambda entry: entry[2].generated(self._step))
        while len(by_output) > 1 and self._room() < len(by_output):
            request = by_output.pop(0)[2]
            generated = request.generated(self._step)
            self._stop(request, cached=request.context)
            request.context += generated
            request.computed = request.context
            request.remaining -= generated
            request.max_new = max(1, request.max_new - generated)
            self.queue.append(request)
            self.counts.num_retracted += 1
        self._running = by_output
        heapq.heapify(self._running)
        generated = sum(entry[2].generated(self._step) for entry in by_output)
        allowed = sum(entry[2].max_new for entry in by_output)
        self._reservation = min(1.0, (generated + _RETRACT_STEPS * len(by_output)) / (allowed + 1))
