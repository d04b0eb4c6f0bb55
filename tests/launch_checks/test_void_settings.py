"""Every setting under `pivot` has an effect in every mode, or the launch that sets it there is refused."""

import random
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pyarrow
import pyarrow.parquet
import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel

from tests.support.paths import ROOT
from tests.support.scripted_engine import call, loop_of, rollout_config, row, scripted_model
from verl_pivot.configuration import config_groups
from verl_pivot.data.curriculum import Curriculum, CurriculumOptions, PivotRecord, parse_options
from verl_pivot.data.pivots import SCHEMA
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.void_settings import VOID_SETTINGS, check_void_settings
from verl_pivot.resampling.groups import Group, Rollout
from verl_pivot.resampling.penalties import Penalty
from verl_pivot.resampling.settings import ResamplingSettings, settings_of
from verl_pivot.rewards.process_settings import ProcessSettings
from verl_pivot.rewards.rubric_settings import RubricSettings
from verl_pivot.rewards.ruler_settings import RulerSettings
from verl_pivot.rollout.notebook_settings import NotebookSettings
from verl_pivot.rollout.settings import RolloutSettings, parse_settings
from verl_pivot.rollout.tree_search_settings import TreeSearchSettings
from verl_pivot.routing.routing_policy import ConversationEnd, RoutingPolicy, TurnRelease, TurnRequest
from verl_pivot.routing.settings import RouterSettings, make_routing_policy, parse_router

SECTIONS: Mapping[str, type[BaseModel]] = {
    "pivot.resampling": ResamplingSettings,
    "pivot.rollout": RolloutSettings,
    "pivot.curriculum": CurriculumOptions,
    "pivot.router": RouterSettings,
    "pivot.process": ProcessSettings,
    "pivot.rubrics": RubricSettings,
    "pivot.ruler": RulerSettings,
    "pivot.tree_search": TreeSearchSettings,
    "pivot.notebook": NotebookSettings,
}
SHOWN_ELSEWHERE = {
    "pivot.resampling.group_size": (
        "resampling/test_groups.py",
        "test_settings_that_cannot_work_are_refused_before_the_launch",
    ),
    "pivot.resampling.oversample": (
        "resampling/test_groups.py",
        "test_an_oversample_of_one_and_a_half_generates_twelve_rollouts_for_a_group_of_eight",
    ),
    "pivot.resampling.equal_rewards": (
        "resampling/test_roc_replay_buffer.py",
        "test_groups_without_enough_usable_rollouts_or_without_advantage_are_replaced",
    ),
    "pivot.resampling.max_gen_batches": (
        "resampling/test_roc_replay_buffer.py",
        "test_the_run_stops_at_the_bound_on_generation_and_names_the_counts",
    ),
    "pivot.tree_search.num_candidates": (
        "rollout/test_tree_search.py",
        "test_the_row_holds_exactly_the_tokens_of_the_chosen_turns",
    ),
    "pivot.tree_search.beam": ("rollout/test_tree_search.py", "test_the_second_of_a_beam_may_win_in_the_end"),
    "pivot.tree_search.lookahead": (
        "rollout/test_tree_search.py",
        "test_lookahead_draws_a_turn_that_the_row_does_not_hold",
    ),
    "pivot.tree_search.scored_by": (
        "rollout/test_tree_search.py",
        "test_by_outcome_only_a_state_that_solves_the_task_counts",
    ),
    "pivot.curriculum.enabled": (
        "contract/test_configs.py",
        "test_the_curriculum_is_off_by_default_and_its_options_are_those_of_the_config",
    ),
    "pivot.rollout.parser": ("contract/test_configs.py", "test_the_options_of_the_tool_loop_are_those_of_the_config"),
    "pivot.rollout.environment": (
        "rollout/test_driven_rollouts.py",
        "test_tokens_masks_and_logprobs_are_those_of_the_tool_loop",
    ),
    "pivot.rollout.max_turns": ("rollout/test_tool_loop.py", "test_calls_of_the_last_turn_are_not_run"),
    "pivot.router.router_class": ("contract/test_configs.py", "test_the_defaults_of_a_router_are_those_of_its_config"),
    "pivot.router.policy": (
        "contract/test_configs.py",
        "test_a_routers_settings_reach_verl_as_a_file_with_the_limits_of_the_launch",
    ),
    "pivot.router.poll_seconds": (
        "routing/test_router_actor.py",
        "test_a_dead_engine_gets_no_more_requests_and_an_added_one_does",
    ),
    "pivot.router.engines_per_shard": (
        "routing/test_router_actor.py",
        "test_conversations_that_wait_on_one_actor_begin_on_the_engines_of_another",
    ),
    "pivot.router.forget_after_seconds": (
        "routing/test_router.py",
        "test_conversations_without_calls_are_forgotten_unless_a_request_runs",
    ),
}
"""Settings that every mode reads, with the test that shows their effect."""
PROCESS = {
    "pivot.process.mode": ("rewards/test_process.py", "test_the_five_modes_by_hand"),
    "pivot.process.mu": ("rewards/test_process.py", "test_a_wrong_trajectory_of_three_turns_by_hand"),
    "pivot.process.alpha": ("rewards/test_process.py", "test_a_wrong_trajectory_of_three_turns_by_hand"),
    "pivot.process.per_turn": ("rewards/test_process.py", "test_a_wrong_trajectory_of_three_turns_by_hand"),
    "pivot.process.invalid": ("rewards/test_process.py", "test_a_turn_without_a_valid_answer_by_hand"),
    "pivot.process.reward": ("rewards/test_checklist.py", "test_gains_take_the_place_of_scores"),
    "pivot.process.checklist_from": (
        "rewards/test_checklist_rewards.py",
        "test_another_first_page_has_a_checklist_of_its_own_unless_the_task_alone_counts",
    ),
    "pivot.process.progress_by": (
        "rewards/test_checklist_rewards.py",
        "test_a_server_without_logprobs_is_named_where_progress_goes_by_probabilities",
    ),
    "pivot.process.samples": (
        "rewards/test_checklist_rewards.py",
        "test_several_answers_are_asked_with_seeds_of_their_own_and_averaged",
    ),
    "pivot.process.judge_validation": (
        "rewards/test_process_rewards.py",
        "test_validation_that_asks_no_judge_pays_the_outcome_alone_and_training_as_before",
    ),
    "pivot.process.best_of": (
        "rollout/test_best_of.py",
        "test_the_turn_with_the_most_progress_is_done_and_of_equal_ones_the_first",
    ),
    "pivot.process.base_url": (
        "launch_checks/test_process.py",
        "test_a_launch_with_a_judge_passes_and_mode_outcome_needs_none",
    ),
    "pivot.process.model": ("rewards/test_turn_judge.py", "test_the_settings_of_a_question_reach_the_judge"),
    "pivot.process.api_key_variable": ("rewards/test_turn_judge.py", "test_the_settings_of_a_question_reach_the_judge"),
    "pivot.process.form": (
        "rewards/test_turn_judge.py",
        "test_the_released_form_sends_no_schema_and_the_other_the_one_that_is_chosen",
    ),
    "pivot.process.principles": ("launch_checks/test_process.py", "test_a_file_of_principles_that_is_wrong_is_named"),
    "pivot.process.max_added_principles": (
        "rewards/test_principles.py",
        "test_an_answer_of_principles_that_breaks_its_form_is_invalid",
    ),
    "pivot.process.answer_format": (
        "rewards/test_turn_judge.py",
        "test_the_released_form_sends_no_schema_and_the_other_the_one_that_is_chosen",
    ),
    "pivot.process.max_tokens": ("rewards/test_turn_judge.py", "test_the_settings_of_a_question_reach_the_judge"),
    "pivot.process.max_question_tokens": (
        "rewards/test_turn_judge.py",
        "test_a_long_history_is_cut_in_its_middle_and_says_so_while_the_turn_stays_whole",
    ),
    "pivot.process.temperature": ("rewards/test_turn_judge.py", "test_the_settings_of_a_question_reach_the_judge"),
    "pivot.process.invalid_retries": ("rewards/test_turn_judge.py", "test_the_settings_of_a_question_reach_the_judge"),
    "pivot.process.max_concurrency": (
        "rewards/test_turn_judge.py",
        "test_no_more_questions_run_at_a_time_than_allowed_in_all_workers_together",
    ),
    "pivot.process.timeout_seconds": (
        "rewards/test_turn_judge.py",
        "test_a_judge_that_takes_too_long_is_asked_as_often_as_allowed_and_decides_nothing",
    ),
    "pivot.process.max_retries": (
        "rewards/test_turn_judge.py",
        "test_a_judge_that_takes_too_long_is_asked_as_often_as_allowed_and_decides_nothing",
    ),
    "pivot.process.cache_dir": (
        "rewards/test_turn_judge.py",
        "test_equal_questions_of_one_time_and_of_an_earlier_launch_are_asked_once",
    ),
}
"""Settings of `pivot.process`, with tests of their effect; launch_checks/test_process.py shows where they have none."""
_WORKFLOWS = "rollout/test_workflows.py"
WORKFLOWS = {
    "pivot.rollout.workflows.file": (_WORKFLOWS, "test_a_memory_from_a_file_stays_as_it_is_without_every_steps"),
    "pivot.rollout.workflows.every_steps": (
        _WORKFLOWS,
        "test_successes_join_every_two_steps_and_the_version_counts_up",
    ),
    "pivot.rollout.workflows.max_tokens": (
        _WORKFLOWS,
        "test_no_more_workflows_than_max_tokens_and_than_the_prompt_has_room_for",
    ),
    "pivot.rollout.workflows.per_template": (_WORKFLOWS, "test_laws_of_the_memory"),
    "pivot.rollout.workflows.max_workflows": (_WORKFLOWS, "test_laws_of_the_memory"),
    "pivot.rollout.workflows.min_score": (_WORKFLOWS, "test_a_rollout_below_min_score_is_no_success"),
    "pivot.rollout.workflows.validation": (
        _WORKFLOWS,
        "test_validation_sees_workflows_in_every_other_rollout_where_it_is_told_so",
    ),
}
"""Settings of `pivot.rollout.workflows`, with the test that shows their effect."""
_RULER, _SENT = "rewards/test_ruler_judge.py", "test_the_settings_of_a_question_reach_the_judge"
RULER = {
    "pivot.ruler.base_url": ("contract/test_configs.py", "test_a_group_that_could_not_be_compared_stops_the_launch"),
    **{
        f"pivot.ruler.{name}": (_RULER, _SENT)
        for name in ("model", "api_key_variable", "rubric", "answer_format", "max_tokens", "temperature")
    },
    "pivot.ruler.invalid_retries": (_RULER, _SENT),
    "pivot.ruler.max_question_tokens": (_RULER, "test_long_texts_are_cut_to_the_tokens_of_a_question"),
    "pivot.ruler.max_concurrency": (
        _RULER,
        "test_no_more_questions_run_at_a_time_than_allowed_in_all_workers_together",
    ),
    "pivot.ruler.timeout_seconds": (_RULER, "test_a_judge_that_takes_too_long_is_asked_as_often_as_allowed"),
    "pivot.ruler.max_retries": (_RULER, "test_a_judge_that_takes_too_long_is_asked_as_often_as_allowed"),
    "pivot.ruler.cache_dir": (
        _RULER,
        "test_an_equal_group_of_an_earlier_launch_is_not_asked_about_again_whatever_its_order",
    ),
    "pivot.ruler.wait_seconds": (
        "rollout/test_group_rewards.py",
        "test_a_group_that_is_spread_over_workers_ends_undecided",
    ),
}
"""Settings of `pivot.ruler`, with the test that shows their effect."""
_RUBRICS = "rewards/test_rubrics.py"
_RUBRICS_SENT = "test_the_settings_of_a_question_reach_the_judge"
RUBRICS = {
    "pivot.rubrics.base_url": (
        "contract/test_configs.py",
        "test_rubrics_that_could_not_be_asked_or_paid_stop_the_launch",
    ),
    **{
        f"pivot.rubrics.{name}": (_RUBRICS, _RUBRICS_SENT)
        for name in ("model", "api_key_variable", "answer_format", "max_tokens", "temperature", "max_question_tokens")
    },
    "pivot.rubrics.invalid_retries": (_RUBRICS, "test_an_unreadable_answer_is_asked_again_and_then_undecided"),
    "pivot.rubrics.scale": (_RUBRICS, "test_the_other_scales_ask_for_their_own_form"),
    "pivot.rubrics.asked": (_RUBRICS, "test_asked_together_is_one_question_for_all_criteria"),
    "pivot.rubrics.evolve": (_RUBRICS, "test_a_group_is_scored_by_its_fixed_criteria_and_by_those_that_a_model_writes"),
    "pivot.rubrics.max_active": (
        _RUBRICS,
        "test_a_criterion_without_spread_goes_inactive_and_five_with_the_largest_stay",
    ),
    "pivot.rubrics.strictness": (_RUBRICS, "test_a_strict_step_pays_no_part"),
    "pivot.rubrics.max_concurrency": (_RUBRICS, "test_no_more_questions_run_at_a_time_than_allowed"),
    "pivot.rubrics.timeout_seconds": (_RUBRICS, "test_a_judge_that_is_down_decides_nothing"),
    "pivot.rubrics.max_retries": (_RUBRICS, "test_a_judge_that_is_down_decides_nothing"),
    "pivot.rubrics.cache_dir": (_RUBRICS, "test_no_judgment_is_asked_twice_nor_after_a_resume"),
    "pivot.rubrics.wait_seconds": (
        "rollout/test_rubric_rewards.py",
        "test_a_group_that_is_not_whole_in_time_is_undecided",
    ),
}
"""Settings of `pivot.rubrics`, with the test that shows their effect."""
_LOOP, _PARTS, _STEPS = "rollout/test_notebook_loop.py", "rollout/test_notebook_parts.py", "rewards/test_steps.py"
NOTEBOOK = {
    "pivot.notebook.rows": (_LOOP, "test_each_step_may_be_a_row_with_what_it_read_as_its_prompt"),
    "pivot.notebook.trim": (_LOOP, "test_a_trim_of_the_oldest_steps_keeps_whole_steps_token_for_token"),
    "pivot.notebook.trim_keep": (_PARTS, "test_a_trim_leaves_room_for_a_step_whatever_its_share"),
    "pivot.notebook.max_context_tokens": (_LOOP, "test_a_context_larger_than_the_engines_is_refused"),
    "pivot.notebook.max_step_tokens": (_PARTS, "test_a_window_without_room_for_a_step_is_refused"),
    "pivot.notebook.max_steps": (_LOOP, "test_without_an_answer_the_trajectory_ends_with_its_last_step"),
    "pivot.notebook.notepad": (_LOOP, "test_without_a_notepad_nothing_speaks_of_one"),
    "pivot.notebook.normalise": ("advantages/test_steps.py", "test_the_paper_puts_epsilon_under_the_root"),
    "pivot.notebook.execution": (_STEPS, "test_the_released_code_rewards_the_share_of_outputs_that_are_no_errors"),
    "pivot.notebook.gamma": (_STEPS, "test_a_step_s_return_is_its_reward_and_the_discounted_return_of_the_next"),
    **{
        f"pivot.notebook.{weight}": (_STEPS, "test_weights_are_those_of_the_rule")
        for weight in (
            "weights.answer", "weights.format", "weights.execution",
            "answer_weights.em", "answer_weights.has_answer", "answer_weights.f1",
        )
    },
}  # fmt: skip
PLAIN = {
    "pivot.browser.path": (
        "browser/test_settings.py",
        "test_the_browser_of_a_launch_is_found_in_its_processes",
    ),
    "pivot.rewards": ("contract/test_configs.py", "test_the_launch_says_the_worst_and_the_best_sum"),
    "pivot.record": ("rollout/test_tool_loop.py", "test_a_record_of_calls_has_no_texts"),
    "pivot.verifier_modules": (
        "launch_checks/test_checks.py",
        "test_verifiers_that_do_not_exist_or_take_other_options_are_refused",
    ),
    "pivot.max_undecided_batches": (
        "rollout/test_tool_training.py",
        "test_undecided_batches_are_sampled_again_until_too_many_in_a_row_stop_the_run",
    ),
    "pivot.objective": ("launch_checks/test_objective.py", "test_an_objective_sets_verls_loss_and_its_aggregation"),
    "pivot.max_turn_tokens": (
        "rollout/test_pivot_turn.py",
        "test_a_limit_for_one_turn_is_the_engines_limit_and_other_parameters_stay",
    ),
    "pivot.allow_other_sampling": (
        "launch_checks/test_sampling.py",
        "test_every_difference_is_said_once_and_the_switch_goes_on_with_a_line",
    ),
}
"""Settings outside SECTIONS, with the test that shows their effect."""


def keys_of(section: str, options: type[BaseModel]) -> Iterator[str]:
    """Keys of a section, those of its subsections included."""
    for name, field in options.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from keys_of(f"{section}.{name}", type(field.default))
        else:
            yield f"{section}.{name}"


KEYS = {section: list(keys_of(section, options)) for section, options in SECTIONS.items()}


@cache
def stock(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def part_of(config: DictConfig) -> DictConfig:
    """A copy of the sections that the checks read; to copy the whole config would take long."""
    sections = ("pivot", "data", "trainer")
    return OmegaConf.create({name: OmegaConf.to_container(config[name]) for name in sections})


def changed(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    config = config.copy()
    for key, value in values.items():
        OmegaConf.update(config, key, value, force_add=True)
    return config


def is_void(config: DictConfig, key: str) -> bool:
    return any(key in void.keys and void.applies_to(config) for void in VOID_SETTINGS)


def refusal(config: DictConfig, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_void_settings(config, overrides)
    return str(caught.value)


# ---- resampling


@cache
def groups() -> tuple[Group, ...]:
    """45 groups of eight rollouts, five for each number of failures from 0 to 8."""
    rng = random.Random(0)
    return tuple(
        Group(
            uid=str(number), number=number,
            rollouts=tuple(
                Rollout(
                    id=f"{number}_{index}", score=float(index >= number % 9),
                    penalty=Penalty(num_calls=4, num_errors=rng.randrange(5), num_answers=1, num_turns=4),
                )
                for index in rng.sample(range(8), 8)
            ),
        )
        for number in range(45)
    )  # fmt: skip


def seen_by_update(settings: ResamplingSettings) -> list[object]:
    """For each group, why it is dropped, or else the ids of the rollouts that the update sees."""
    seen: list[object] = []
    for group in groups():
        generated = Group(uid=group.uid, number=group.number, rollouts=group.rollouts[: settings.num_generated])
        reason = generated.drop_reason(settings, step=1)
        seen.append(reason or [rollout.id for rollout in generated.kept(settings, step=1)])
    return seen


OTHER_RESAMPLING = {"mode": None, "min_failures": 0, "min_successes": 0, "seed": 5}


@pytest.mark.parametrize("equal_rewards", ["keep", "reject", "drop", "keep_half"])
@pytest.mark.parametrize("oversample", [1, 2])
@pytest.mark.parametrize("mode", ["paper", "released", "best_of_n", "farthest"])
def test_a_setting_of_resampling_changes_what_the_update_sees_or_is_refused(
    mode: str, oversample: int, equal_rewards: str
) -> None:
    chosen = {"mode": mode, "oversample": oversample, "equal_rewards": equal_rewards, "group_size": 8 // oversample}
    config = changed(
        part_of(stock("+method=grpo_roc")), {f"pivot.resampling.{name}": value for name, value in chosen.items()}
    )
    plain = seen_by_update(settings_of(config.pivot.resampling))

    for key in set(KEYS["pivot.resampling"]) - SHOWN_ELSEWHERE.keys():
        name = key.rpartition(".")[2]
        value = ("paper" if mode == "released" else "released") if name == "mode" else OTHER_RESAMPLING[name]
        other = changed(config, {key: value})

        assert is_void(config, key) == (seen_by_update(settings_of(other.pivot.resampling)) == plain), key


# ---- curriculum


def draws(config: DictConfig) -> list[list[int]]:
    """Pivots that 40 steps draw, four each, from 16 with pass rates from 0 to 1; none without a curriculum."""
    options = parse_options(OmegaConf.to_container(config.pivot.curriculum))  # type: ignore[arg-type]
    if not options.enabled:
        return []
    rng = random.Random(1)
    curriculum = Curriculum(
        [PivotRecord() for _ in range(16)],
        options, identity="", seed=0, shuffle=config.data.shuffle, batch_size=4,
    )  # fmt: skip
    drawn = []
    for step in range(1, 41):
        batch = [curriculum.draw() for _ in range(4)]
        drawn.append(batch)
        rewards = {pivot: [float(rng.random() < pivot / 15) for _ in range(4)] for pivot in range(16)}
        curriculum.observe(step, [(pivot, rewards[pivot]) for pivot in batch])
    return drawn


OTHER_CURRICULUM = {
    "decay": 0.7, "retire_variance": 0.2, "retire_visits": 1, "weight_exponent": 6.0, "reprofile_every": 7,
    "reprofile_share": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("reprofile_every", [0, 3])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_setting_of_the_curriculum_changes_the_draws_or_is_refused(
    enabled: bool, shuffle: bool, reprofile_every: int
) -> None:
    config = changed(
        part_of(stock("+method=pivotrl")),
        {
            "pivot.curriculum.enabled": enabled, "data.shuffle": shuffle,
            "pivot.curriculum.reprofile_every": reprofile_every,
        },
    )  # fmt: skip
    plain = draws(config)

    for key in set(KEYS["pivot.curriculum"]) - SHOWN_ELSEWHERE.keys():
        other = changed(config, {key: OTHER_CURRICULUM[key.rpartition(".")[2]]})

        assert is_void(config, key) == (draws(other) == plain), key


# ---- rollouts with tools

TAGS = [{"open": "<code>", "close": "</code>", "tool": "busy", "argument": "text"}]
OTHER_TAGS = [{"open": "<code>", "close": "</run>", "tool": "busy", "argument": "text"}]
RETRIES = {"answer_tag": "answer", "retry_message": "Answer."}
OTHER_ROLLOUT: Mapping[str, dict[str, Any]] = {
    "tools": {"tools": "other.yaml"},
    "tags": {"tags": OTHER_TAGS},
    "observation_role": {"observation_role": "user"},
    "observation_template": {"observation_template": "Result: {text}"},
    "assistant_prefix": {"assistant_prefix": "<reason>"},
    "answer_tag": RETRIES,
    "retry_message": {"retry_message": "Answer, please."},
    "format_tag": {"format_tag": "answer"},
    "parallel_calls": {"parallel_calls": True},
    "max_turn_tokens": {"max_turn_tokens": 5},
    "max_observation_tokens": {"max_observation_tokens": 16},
    "max_calls_per_turn": {"max_calls_per_turn": 1},
    "max_wall_seconds": {"max_wall_seconds": 1e-9},
}
"""{setting: another value for it, with the settings that it needs}"""


async def played(config: DictConfig) -> object:
    """What two scripted rollouts ask of the engine and give to verl, and what a dump holds if one is written."""
    calls = "<code>x</code>" if config.pivot.rollout.parser == "tags" else call("busy") + call("busy")
    script = [f"<answer>1</answer>{calls}", "I see.", "<answer>2</answer>", "Done.", "Done."]
    return [await played_script(config, script), await played_script(config, script[1:])]


async def played_script(config: DictConfig, script: list[str]) -> object:
    from verl_pivot.rollout.tool_loop import ToolLoop

    loop = loop_of(ToolLoop, config, script, seconds=0.01)
    output = await loop.run({"temperature": 1.0, "logprobs": True}, **row())
    record = output.extra_fields["rollout"]
    dumped = record["num_answers"] if config.trainer.rollout_data_dir else None
    asked = [request["params"] for request in loop.server_manager.requests]
    return asked, output.prompt_ids, output.response_ids, output.response_mask, record["stop_reason"], dumped


@pytest.mark.parametrize(
    ("parser", "max_turns", "dumps"),
    [("hermes", 3, None), ("hermes", 3, "dumps"), ("hermes", 1, None), ("tags", 3, None), ("tags", 1, None)],
)
async def test_a_setting_of_rollouts_with_tools_changes_them_or_is_refused(
    parser: str, max_turns: int, dumps: str | None, tmp_path: Path
) -> None:
    for file, names in {"tools.yaml": ["busy"], "other.yaml": ["busy", "add"]}.items():
        (tmp_path / file).write_text("".join(f"- function: tests.support.tool_functions:{name}\n" for name in names))
    chosen = {
        "tools": f"{tmp_path}/tools.yaml", "parser": parser, "max_turns": max_turns,
        "tags": TAGS if parser == "tags" else [],
    }  # fmt: skip
    config = changed(
        rollout_config(scripted_model(), "actor_rollout_ref.rollout.skip_tokenizer_init=False"),
        {f"pivot.rollout.{name}": value for name, value in chosen.items()} | {"trainer.rollout_data_dir": dumps},
    )
    of_turns = set(KEYS["pivot.rollout"]) - SHOWN_ELSEWHERE.keys() - WORKFLOWS.keys()
    keys = of_turns if dumps is None else {"pivot.rollout.format_tag"}

    for key in keys:
        values = OTHER_ROLLOUT[key.rpartition(".")[2]]
        if "tools" in values:
            values = {"tools": f"{tmp_path}/{values['tools']}"}
        before = with_rollout(config, RETRIES) if key == "pivot.rollout.retry_message" else config
        other = with_rollout(before, values)
        try:
            parse_settings(other)
        except ConfigError:
            continue  # these values are refused with a sentence of their own

        assert is_void(config, key) == (await played(other) == await played(before)), key


def with_rollout(config: DictConfig, values: Mapping[str, Any]) -> DictConfig:
    return changed(config, {f"pivot.rollout.{name}": value for name, value in values.items()})


# ---- routers


def state(node: object) -> object:
    """Everything that a routing policy consists of, as plain data."""
    if isinstance(node, BaseModel):
        return node.model_dump()
    if isinstance(node, (list, tuple, set)) or hasattr(node, "tolist"):
        return repr(node)
    attributes = getattr(node, "__dict__", None)
    return (
        {name: state(value) for name, value in attributes.items()} if attributes else repr(node).partition(" at 0x")[0]
    )


@pytest.mark.parametrize("policy", get_args(RouterSettings.model_fields["policy"].annotation))
def test_a_setting_of_a_router_reaches_its_routing_policy_or_is_refused(policy: str) -> None:
    config = changed(part_of(stock("+router=kv_forecast")), {"pivot.router.policy": policy})

    def policy_of(config: DictConfig) -> object:
        return state(make_routing_policy(parse_router(OmegaConf.to_container(config.pivot.router, resolve=True), "")))

    for key in set(KEYS["pivot.router"]) - SHOWN_ELSEWHERE.keys():
        value = OmegaConf.select(config, key)
        other = changed(config, {key: value / 2 if isinstance(value, float) and value < 1 else value + 1})

        assert is_void(config, key) == (policy_of(other) == policy_of(config)), key


def test_without_moves_the_ratio_for_them_is_refused() -> None:
    """A turn moves from a server with eight conversations to one with only one, except if move_ratio is 20."""

    def server_of_returning_turn(**options: float) -> str:
        router = {"policy": "kv_forecast", "max_response_tokens": 1000, "kv_forecast": options}
        policy = make_routing_policy(parse_router(router, "test"))
        policy.add_server("a", 100_000, 0.0)
        for number in range(8):
            ask(policy, f"c{number}")
        policy.add_server("b", 100_000, 0.0)
        ask(policy, "other")
        policy.release(TurnRelease(conversation="c0", server="a", now=10.0, may_be_last=False))
        return ask(policy, "c0", context=520)

    assert server_of_returning_turn() != server_of_returning_turn(move_ratio=20.0)
    assert server_of_returning_turn(max_moves=0.0) == server_of_returning_turn(max_moves=0.0, move_ratio=20.0)
    key = "pivot.router.kv_forecast.move_ratio"
    assert is_void(changed(stock("+router=kv_forecast"), {"pivot.router.kv_forecast.max_moves": 0.0}), key)
    assert not is_void(stock("+router=kv_forecast"), key)


OTHER_ROUTER = {
    "kv_forecast": {
        "fill": 0.3, "deviations": 9.0, "running_share": 1.0, "block_size": 1, "light_block_size": 50, "move_ratio": 1,
        "max_moves": 9.0, "learn_every": 3, "max_remembered": 5,
    },
    "cache_aware": {"cache_threshold": 1.0, "balance_abs_threshold": 0, "balance_rel_threshold": 9.0},
    "least_inflight": {"max_sessions": 1},
    "static": {"num_conversations": 3},
}  # fmt: skip
"""{routing policy: {option: another value}}"""


def placed(policy: str, options: Mapping[str, float], *, says_so: bool) -> list[tuple[str, str]]:
    """(rollout, its server) in the order of placement, for three steps of rollouts of one turn each.

    Args:
        policy: Name of the routing policy.
        options: Options of the policy.
        says_so: Whether requests say that they are their rollout's only turn, as those of pivots do.
    """
    made = make_routing_policy(parse_router({"policy": policy, "max_response_tokens": 1000, policy: options}, "test"))
    for server, capacity in {"a": 3_000, "b": 9_000, "c": 18_000}.items():
        made.add_server(server, capacity, 0.0)
    rng, order = random.Random(0), []
    for step in range(3):
        running: list[tuple[str, str]] = []
        for number in range(200):  # 110 of these rollouts are of the first prompt
            request = TurnRequest(
                conversation=f"{step}_{number}", group=f"{step}_{max(0, number - 100) // 10}", prompt_tokens=100,
                context_tokens=0, now=100.0 * step, is_only_turn=says_so,
            )  # fmt: skip
            running += [tuple(placement) for placement in made.acquire(request)]
        order += running
        for ended in range(200):
            name, server = running.pop(rng.randrange(len(running)))
            now = 100.0 * step + 0.4 * (ended + 1)
            new = [*made.release(TurnRelease(conversation=name, server=server, now=now, may_be_last=not says_so))]
            num_tokens = rng.randrange(100 + 400 * step)
            new += made.end(ConversationEnd(conversation=name, response_tokens=num_tokens, now=now))
            order += [tuple(placement) for placement in new]
            running += [tuple(placement) for placement in new]
    return order


@pytest.mark.parametrize("method", ["+method=pivotrl", None])
@pytest.mark.parametrize("policy", OTHER_ROUTER)
def test_an_option_of_a_router_places_single_turns_otherwise_or_is_refused(
    method: str | None, policy: str, tmp_path: Path
) -> None:
    """With pivots, whose agent loop says that each rollout has one turn, and with stock verl's own agent loop."""
    pivot = {**dict.fromkeys(SCHEMA.names, "{}"), "turn_index": 0, "num_prompt_tokens": 9}
    row = pivot if method else {"prompt": "Hello."}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    overrides = [f"data.train_files={tmp_path}/rows.parquet", f"data.val_files={tmp_path}/rows.parquet"]
    config = stock("+router=kv_forecast", f"pivot.router.policy={policy}", *overrides, *([method] if method else []))
    plain = placed(policy, {}, says_so=method is not None)

    for name, value in OTHER_ROUTER[policy].items():
        key = f"pivot.router.{policy}.{name}"
        assert is_void(config, key) == (placed(policy, {name: value}, says_so=method is not None) == plain), key
    several = changed(config, {"trainer.v1.trainer_mode": "colocate_async"})  # a mode that interrupts turns
    assert not any(is_void(several, f"pivot.router.{policy}.{name}") for name in OTHER_ROUTER[policy])


def ask(policy: RoutingPolicy, conversation: str, *, context: int = 0) -> str:
    request = TurnRequest(conversation=conversation, group="g", prompt_tokens=100, context_tokens=context, now=11.0)
    return next(iter(policy.acquire(request))).server


# ---- a notebook, whose loop has its own settings

OF_NOTEBOOKS = [void for void in VOID_SETTINGS if void.beside.startswith("+method=l0")]


@pytest.mark.parametrize("key", [key for void in OF_NOTEBOOKS for key in void.keys])
def test_a_setting_of_turns_with_calls_is_refused_beside_a_notebook(key: str) -> None:
    assert is_void(stock("+method=l0"), key)
    workflows = [f"pivot.rollout.workflows.{each}" for each in ("file=workflows.jsonl", "every_steps=1")]
    assert not is_void(stock("+method=tool_rollout", "trainer.rollout_data_dir=dumps", *workflows), key)


def test_a_notebook_as_it_is_shipped_has_no_setting_in_vain() -> None:
    check_void_settings(stock("+method=l0"), ["+method=l0"])


# ---- all of them


def test_every_setting_is_tried_or_names_the_test_that_shows_its_effect() -> None:
    tried = {
        *(f"pivot.resampling.{name}" for name in OTHER_RESAMPLING),
        *(f"pivot.rollout.{name}" for name in OTHER_ROLLOUT),
        *(f"pivot.curriculum.{name}" for name in OTHER_CURRICULUM),
        *(key for key in KEYS["pivot.router"] if key not in SHOWN_ELSEWHERE),
        *PROCESS,
        *WORKFLOWS,
        *NOTEBOOK,
        *RULER,
        *RUBRICS,
    }  # fmt: skip
    assert {key for keys in KEYS.values() for key in keys} == tried | SHOWN_ELSEWHERE.keys()
    elsewhere = [void for void in VOID_SETTINGS if void not in OF_NOTEBOOKS]
    assert not {key for void in elsewhere for key in void.keys} & SHOWN_ELSEWHERE.keys()
    plain = {
        f"pivot.{name}"
        for method in config_groups()["method"]
        for name in stock(f"+method={method}").pivot
        if f"pivot.{name}" not in SECTIONS
    }
    assert plain == {".".join(key.split(".")[:2]) for key in PLAIN}
    for test in {**SHOWN_ELSEWHERE, **PROCESS, **WORKFLOWS, **NOTEBOOK, **RULER, **RUBRICS, **PLAIN}.values():
        file, name = test
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), test


def test_batches_without_a_decided_reward_are_counted_by_the_methods_that_have_them() -> None:
    key = "pivot.max_undecided_batches"

    assert refusal(stock("+method=grpo_roc"), f"{key}=5") == (
        "pivot.max_undecided_batches=3 does nothing beside pivot.resampling, which replaces each group that has too "
        "few decided rollouts: leave it out, or set pivot.resampling.max_gen_batches, which limits these replacements"
    )
    assert not is_void(stock("+method=pivotrl"), key)
    assert not is_void(stock("+method=tool_rollout"), key)


def test_a_setting_in_vain_is_refused_also_with_its_default_or_from_a_file_of_ones_own() -> None:
    config = stock("+method=grpo_roc")
    said = (
        " does nothing beside a pivot.resampling.mode other than released: leave it out, or set "
        "pivot.resampling.mode=released"
    )

    assert refusal(config, "pivot.resampling.min_failures=2") == "pivot.resampling.min_failures=2" + said
    own_file = changed(config, {"pivot.resampling.min_successes": 4})
    assert refusal(own_file) == "pivot.resampling.min_successes=4" + said
    check_void_settings(config, ["+method=grpo_roc"])


def test_whole_tasks_beside_single_turns_name_some_settings_of_rollouts_with_tools_alone() -> None:
    """The method pivotrl has no section `pivot.rollout`, so that the section holds only what the user adds."""
    tools, role = "+pivot.rollout.tools=tools.yaml", "+pivot.rollout.observation_role=user"

    check_void_settings(stock("+method=pivotrl", tools), [tools])
    check_void_settings(stock("+method=pivotrl", tools, role), [tools, role])
    one_turn = "+pivot.rollout.max_turns=1"
    assert refusal(stock("+method=pivotrl", tools, role, one_turn), tools, role, one_turn).startswith(
        "pivot.rollout.observation_role=user does nothing beside pivot.rollout.max_turns=1"
    )


@pytest.mark.parametrize("tool_format", config_groups()["tool_format"])
def test_the_configs_of_this_package_set_nothing_in_vain(tool_format: str) -> None:
    """A launch passes even where pivot.rollout.max_turns=1 makes void what its tool format sets."""
    number = config_groups()["tool_format"].index(tool_format)
    stage, router = (config_groups()[group][number % 3] for group in ("stage", "router"))
    overrides = ("+method=grpo_roc", f"+stage={stage}", f"+tool_format={tool_format}", f"+router={router}")

    check_void_settings(stock(*overrides), overrides)
    check_void_settings(changed(part_of(stock(*overrides)), {"pivot.rollout.max_turns": 1}), overrides)


@pytest.mark.parametrize("method", config_groups()["method"])
def test_a_method_alone_sets_nothing_in_vain(method: str) -> None:
    check_void_settings(stock(f"+method={method}"), [f"+method={method}"])
