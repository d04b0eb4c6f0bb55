"""local.trial_report: verl's log of about a thousand lines becomes about ten lines."""

from verl_pivot.errors import NOTE
from verl_pivot.local.trial_report import TrialReport

RUNNER = "\x1b[36m(TaskRunnerV1 pid=21878)\x1b[0m "
DROPPED = "pivot/undecided_rows:8.0 - pivot/lone_rows:0.0 - pivot/absent_rollouts:0.0"
VERDICTS = "verifier/tool_call/accepted:0.1875 - verifier/tool_call/truncated:0.8125"
RESAMPLED = "down_sampling/before_sampling_trace_num:32 - down_sampling/after_sampling_trace_num:16"
LOG = f"""\
2026-11-23 14:12:13,510	INFO worker.py:2038 -- Started a local Ray instance.
{RUNNER}{{'actor_rollout_ref': {{'actor': {{'_target_': 'verl.workers.config.FSDPActorConfig',
{RUNNER}INFO:2026-11-23 14:12:34,594:train dataset size: 57, val dataset size: 3
{RUNNER}INFO:2026-11-23 14:12:34,595:Total training steps: 2
{RUNNER}INFO:2026-11-23 14:12:49,368:actor and ref model engine initialized
{RUNNER}INFO:2026-11-23 14:13:31,080:all initialize finished, ready to fit
{RUNNER}step:0 - val-core/verl_pivot/tool_call/reward/mean@1:np.float64(0.5) - val-aux/num_turns/min:2
{RUNNER}step:1 - {DROPPED} - {VERDICTS} - critic/score/mean:0.1875 - timing_s/gen:0.8287 - timing_s/step:1.7225
{RUNNER}step:2 - {RESAMPLED} - critic/score/mean:1.0 - timing_s/step:1.5
"""


def printed(log: str) -> list[str]:
    report = TrialReport()
    return [said for number, line in enumerate(log.splitlines(keepends=True)) if (said := report.read(line, number))]


def test_phases_and_steps_get_a_line_each() -> None:
    assert printed(LOG) == [
        "    0 s  Ray runs",
        "    2 s  data: 57 rows for training, 3 for validation",
        "    4 s  actor and reference policy loaded",
        "    5 s  rollout engine and reward workers run",
        "    6 s  validation before training: verl_pivot/tool_call/reward/mean@1 0.50",
        "    7 s  step 1 of 2: mean reward 0.19; 1.7 s, 0.8 of them sampling; dropped 8 undecided; 81% truncated; "
        "19% accepted",
        "    8 s  step 2 of 2: mean reward 1.00; 1.5 s; dropped 16 of 32 by resampling",
    ]


def test_groups_that_the_update_does_not_see_are_told() -> None:
    step = "step:1 - critic/score/mean:0.5 - down_sampling/groups_equal_rewards:3.0 - "

    assert printed(f"Total training steps: 1\n{step}{RESAMPLED}\n")[0].endswith(
        "step 1 of 1: mean reward 0.50; dropped 3 groups of equal rewards, 16 of 32 by resampling"
    )


def steps_said(num_steps: int, seconds_of_step: float) -> list[int]:
    """Steps that get a line."""
    report = TrialReport()
    report.read(f"Total training steps: {num_steps}", 0.0)
    logged = {step: f"step:{step} - critic/score/mean:0.5" for step in range(1, num_steps + 1)}
    return [step for step, line in logged.items() if report.read(line, seconds_of_step * step)]


def test_a_long_trial_shows_the_first_step_a_few_and_the_last() -> None:
    assert steps_said(35, 1.0) == [1, 9, 18, 27, 35]


def test_no_trial_is_silent_about_its_steps_for_much_more_than_a_minute() -> None:
    assert steps_said(40, 7.0) == [1, 10, 19, 20, 29, 30, 39, 40]
    assert steps_said(8, 61.0) == [1, 2, 3, 4, 5, 6, 7, 8]


def failure(log: str) -> str:
    report = TrialReport()
    for line in log.splitlines():
        report.read(line, 0)
    return report.failure()


def test_the_cause_of_a_failure_is_our_own_last_sentence() -> None:
    assert failure("ValueError: a\nverl-pivot: data.train_files: x is missing\nRayError: b\n") == (
        "verl-pivot: data.train_files: x is missing"
    )


def test_what_a_launch_notes_is_no_cause_of_its_failure() -> None:
    notes = (
        f"{NOTE}verl 0.10.0.dev: 1 of 57 hooks differs: ...; +method=pivotrl needs none of them\n"
        "verl-pivot runs a training without a GPU; the full log is launch.log\n"
    )

    assert failure(f"{notes}Traceback:\nConnectionError: no cluster\n") == (
        "verl-pivot: the launch failed: ConnectionError: no cluster"
    )
    assert failure(notes) == "verl-pivot: the launch failed; its log says why"


def test_a_full_memory_is_the_cause_however_much_ray_says_of_it_afterwards() -> None:
    log = (
        "ray.exceptions.OutOfMemoryError: 6 worker(s) were killed due to the node running low on memory. Memory on the "
        "node (IP: 10.0.0.1, ID: c9) was 23.12GB used / 23.54GB limit (0.982324)\n" + "Considered workers: [\n" * 60
    )

    assert failure(log) == (
        "verl-pivot: the memory of the machine was full (23.12GB of 23.54GB), so Ray ended processes of the "
        "launch: end other programs on it, or use fewer workers"
    )


def test_without_one_the_cause_is_the_last_error_in_the_log() -> None:
    log = "Traceback:\n  File x\nray.exceptions.RayTaskError(KeyError): ray::run()\nKeyError: 'a'\n\nSet HYDRA=1"

    assert failure(log) == "verl-pivot: the launch failed: KeyError: 'a'"
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    assert failure(f"{died}\n").startswith(
        f"verl-pivot: the launch failed: {died} A worker ended, or its node was lost: "
    )
    assert failure("Killed\n") == "verl-pivot: the launch failed; its log says why"
    assert TrialReport().failure(137).startswith("verl-pivot: the launch was killed (SIGKILL)")
