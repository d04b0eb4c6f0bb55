"""Metrics of the service, which Prometheus reads at /metrics."""

from collections.abc import Callable

from verl_pivot.extras import extra
from verl_pivot.sandbox.execution import Result, Status
from verl_pivot.sandbox.failures import Failure, FailureKind, ServiceBound

with extra("sandbox"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


BUCKET_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Metrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        executions = Counter("sandbox_executions", "Ended executions by status", ["status"], registry=self.registry)
        failures = Counter("sandbox_failures", "Requests without a result", ["kind"], registry=self.registry)
        bounds = Counter("sandbox_bounds_hit", "Requests refused by a bound", ["bound"], registry=self.registry)
        self._opened = Counter("sandbox_sessions_opened", "Opened sessions", ["prewarmed"], registry=self.registry)
        # Children are looked up once: labels() costs more than the count itself.
        self._executions = {status: executions.labels(status) for status in Status}
        self._failures = {kind: failures.labels(kind) for kind in FailureKind}
        self._bounds = {bound: bounds.labels(bound) for bound in ServiceBound}
        self._queue_seconds = Histogram(
            "sandbox_queue_seconds", "Time from arrival to start", buckets=BUCKET_SECONDS, registry=self.registry
        )
        self._wall_seconds = Histogram(
            "sandbox_wall_seconds", "Run time of the program itself", buckets=BUCKET_SECONDS, registry=self.registry
        )
        self.request_bytes = Counter("sandbox_request_bytes", "Bytes of request bodies", registry=self.registry)
        self.response_bytes = Counter("sandbox_response_bytes", "Bytes of results written", registry=self.registry)

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Add a gauge, whose value is read at each scrape."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def ended(self, result: Result) -> None:
        self._executions[result.status].inc()
        self._queue_seconds.observe(result.timing.queue_seconds)
        self._wall_seconds.observe(result.timing.wall_seconds)

    def failed(self, failure: Failure) -> None:
        self._failures[failure.kind].inc()
        if failure.bound is not None:
            self._bounds[failure.bound].inc()

    def opened(self, *, is_prewarmed: bool) -> None:
        self._opened.labels("yes" if is_prewarmed else "no").inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)
