"""Method -> SmokeCase: the turns that a tiny policy writes, its rows, and everything else that a launch needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json

TOOLS = '''
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)
'''
"""A module with the tool that cases without a sandbox call."""
ENVIRONMENT = '''
from verl_pivot.tools.contract import Environment, tool


class Adder(Environment):
    def __init__(self, metadata):
        self.sums = []

    @tool
    def add(self, a: int, b: int) -> int:
        """The sum of two numbers."""
        self.sums.append(a + b)
        return self.sums[-1]

    def state(self):
        return self.sums

    def progress(self):
        return float(len(self.sums))

    async def score(self, answer):
        return float("3" in (answer.content if answer else ""))
'''
"""A module with the environment of cases with a tree search."""
QUESTION = "Add 1 and 2."
JUDGE_PLACE = "{judge}"
"""Placeholder in overrides for the address of a judge."""


class RowKind(StrEnum):
    """Rows of a data file."""

    PIVOTS = "pivots"
    """Single turns of an expert, as `verl-pivot select` writes them."""
    SUMS = "sums"
    """Tasks whose answer verl's own reward function for GSM8K reads."""
    TRUTHS = "truths"
    """Tasks with a right answer, for the reward functions of the methods."""
    TARGETS = "targets"
    """Tasks with a list of accepted answers, for the reward functions of methods that search."""
    BARE = "bare"
    """Tasks without an answer."""
    CRITERIA = "criteria"
    """Tasks without an answer, with criteria."""


class ToolsKind(StrEnum):
    """Tools file of a launch."""

    SHIPPED = "shipped"
    """The file that the method names."""
    FUNCTION = "function"
    """One function."""
    ENVIRONMENT = "environment"
    """One environment, which scores the rollout."""
    SEARCH = "search"
    """The file that the method names, with the address of the smoke's own search service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeCase:
    """Settings for two steps of a method."""

    turns: tuple[str, ...]
    """Turns that the policy writes, all equally likely: a right one, a wrong one, and a call of a tool."""
    rows: RowKind
    tools: ToolsKind | None = None
    """Tools file; None: the method has none."""
    groups: tuple[str, ...] = ()
    """Config groups beside the method."""
    group_size: int = 4
    overrides: tuple[str, ...] = ()
    """Further overrides; JUDGE_PLACE in them is replaced by the judge's address."""


def call(name: str, **arguments: Json) -> str:
    """A turn with one call in the Hermes format."""
    return f"<tool_call>\n{encode_json({'name': name, 'arguments': arguments})}\n</tool_call>"


_CELL = call("jupyter_code", code="print(1 + 2)")
_ADD = call("add", a=1, b=2)
_SEARCH_R1 = (
    "<think>Hm.</think><search>three</search>",
    "<think>So.</think><answer>three</answer>",
    "<think>So.</think><answer>four</answer>",
)
_BOXED = ("So \\boxed{3}.", "So \\boxed{4}.")
_PAID_BY_SEARCH = (
    "reward.custom_reward_function.path=pkg://verl_pivot.rewards.search_rewards",
    "reward.custom_reward_function.name=search_r1",
)
CASES: Mapping[str, SmokeCase] = {
    "pivotrl": SmokeCase(turns=(_ADD, call("add", a=1, b=3)), rows=RowKind.PIVOTS),
    "tool_rollout": SmokeCase(turns=(_CELL, "#### 3", "#### 4"), rows=RowKind.SUMS, tools=ToolsKind.SHIPPED),
    "tree_search": SmokeCase(turns=(_ADD, "It is 3.", "It is 4."), rows=RowKind.BARE, tools=ToolsKind.ENVIRONMENT),
    "grpo_roc": SmokeCase(
        turns=(_CELL, "<answer>#### 3</answer>", "#### 4"), rows=RowKind.SUMS, tools=ToolsKind.SHIPPED
    ),
    "l0": SmokeCase(
        turns=(
            "<think>I add.</think><code>\nx = add(1, 2)\n</code>",
            "<think>It is 3.</think><code>\nsubmit_final_answer('3')\n</code>",
            "<think>It is 4.</think><code>\nsubmit_final_answer('4')\n</code>",
        ),
        rows=RowKind.TARGETS,
        tools=ToolsKind.FUNCTION,
        overrides=(
            "pivot.notebook.max_context_tokens=4096",
            "pivot.notebook.max_step_tokens=16",
            "pivot.notebook.max_steps=3",
        ),
    ),
    "ppr": SmokeCase(
        turns=_SEARCH_R1,
        rows=RowKind.TARGETS,
        tools=ToolsKind.SEARCH,
        groups=("+tool_format=search_r1",),
        group_size=1,
        overrides=(
            "pivot.process.form=released",
            f"pivot.process.base_url={JUDGE_PLACE}",
            "pivot.process.model=stand-in",
            *_PAID_BY_SEARCH,
        ),
    ),
    "search_r1": SmokeCase(
        turns=_SEARCH_R1, rows=RowKind.TARGETS, tools=ToolsKind.SEARCH, group_size=1, overrides=_PAID_BY_SEARCH
    ),
    "search_r1_grpo": SmokeCase(
        turns=_SEARCH_R1, rows=RowKind.TARGETS, tools=ToolsKind.SEARCH, overrides=_PAID_BY_SEARCH
    ),
    "research": SmokeCase(
        turns=(
            "<think>Hm.</think> <search>three</search>",
            "<think>So.</think> <answer>\\boxed{three}</answer>",
            "<think>So.</think> <answer>\\boxed{four}</answer>",
        ),
        rows=RowKind.TARGETS,
        tools=ToolsKind.SEARCH,
    ),
    "retool": SmokeCase(
        turns=("<code>\n```python\nprint(1 + 2)\n```\n</code>", *_BOXED),
        rows=RowKind.TRUTHS,
        tools=ToolsKind.SHIPPED,
        group_size=1,
    ),
    "torl": SmokeCase(
        turns=("```python\nprint(1 + 2)\n```\n```output", *_BOXED), rows=RowKind.TRUTHS, tools=ToolsKind.SHIPPED
    ),
    "zerotir": SmokeCase(
        turns=("```python\nprint(1 + 2)\n```\n", *_BOXED), rows=RowKind.TRUTHS, tools=ToolsKind.SHIPPED
    ),
    "mcp_rl": SmokeCase(
        turns=(_ADD, "It is 3.", "It is 4."),
        rows=RowKind.BARE,
        tools=ToolsKind.FUNCTION,
        overrides=(f"pivot.ruler.base_url={JUDGE_PLACE}", "pivot.ruler.model=stand-in"),
    ),
    # A function instead of web pages: a smoke tries the method on this machine, which may have no browser.
    "web_agent": SmokeCase(turns=(_ADD, "#### 3", "#### 4"), rows=RowKind.SUMS, tools=ToolsKind.FUNCTION),
    "rubrics": SmokeCase(
        turns=(_ADD, "It is 3.", "It is 4."),
        rows=RowKind.CRITERIA,
        tools=ToolsKind.FUNCTION,
        overrides=(
            f"pivot.rubrics.base_url={JUDGE_PLACE}",
            "pivot.rubrics.model=stand-in",
            "pivot.rubrics.asked=together",
        ),
    ),
}
"""{method: its case}, with every method of configs/method."""


def case_of(method: str) -> SmokeCase:
    """The case of a method.

    Raises:
        ConfigError: If there is no such method.
    """
    if method not in CASES:
        raise ConfigError(f"unknown method {method!r}; known: {', '.join(sorted(CASES))}")
    return CASES[method]
