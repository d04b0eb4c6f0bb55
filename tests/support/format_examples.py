"""A small row of every shape that the readers of foreign formats know, and the trajectory that is read from it."""

import json
from dataclasses import dataclass, replace

from tests.support.factories import ANSWER, FIND_ORDER, SYSTEM, USER
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall


@dataclass(frozen=True, kw_only=True)
class Example:
    format: str
    row: JsonObject
    messages: tuple[Message, ...]
    tools: tuple[JsonObject, ...] = ()
    passed: bool | None = None
    task: str | None = None
    """Task by which train and validation are split; None where no column names it."""


ARGUMENTS: JsonObject = {"order_id": 17}
TOOLS = json.dumps([FIND_ORDER])
SENT = '{"status": "sent"}'
CALL = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="find_order", arguments=ARGUMENTS),))
CALL_1 = Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="find_order", arguments=ARGUMENTS, id="call_1"),))
TWO_CALLS = Message(
    role=Role.ASSISTANT,
    content="Both.",
    tool_calls=tuple(ToolCall(name="find_order", arguments={"order_id": number}) for number in (17, 18)),
)
RESULT = Message(role=Role.TOOL, content=SENT)
RESULT_1 = Message(role=Role.TOOL, content=SENT, tool_call_id="call_1", name="find_order")
LOST = Message(role=Role.TOOL, content="lost")
OPENAI_CALL: JsonObject = {"name": "find_order", "arguments": '{"order_id": 17}'}
OPENAI_MESSAGES: list[Json] = [
    {"role": "user", "content": "Where is order 17?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "index": 0, "type": "function", "function": OPENAI_CALL}],
    },
    {"role": "tool", "content": SENT, "tool_call_id": "call_1", "name": "find_order"},
    {"role": "assistant", "content": "It is on its way."},
]

BASH: JsonObject = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command.\nIt may be long."},
                "mode": {"type": "string", "description": "How.", "enum": ["fast", "slow"]},
                "lines": {"type": "array", "description": "From and to."},
                "seconds": {"type": "integer", "description": "How long."},
            },
            "required": ["command"],
        },
    },
}
SUBMIT: JsonObject = {"type": "function", "function": {"name": "submit", "description": "End it."}}
TEXT_PROMPT = """You repair code.
You have access to the following functions:

---- BEGIN FUNCTION #1: bash ----
Description: Run a command.
Parameters:
  (1) command (string, required): The command.
It may be long.
  (2) mode (string, optional): How.
Allowed values: [`fast`, `slow`]
  (3) lines (array, optional): From and to.
  (4) seconds (integer, optional): How long.
---- END FUNCTION #1 ----

---- BEGIN FUNCTION #2: submit ----
Description: End it.
No parameters are required for this function.
---- END FUNCTION #2 ----

If you choose to call a function ONLY reply in the following format with NO suffix:

<function=example_function_name>
<parameter=example_parameter_1>value_1</parameter>
</function>

<IMPORTANT>
Reminder:
- Function calls start with <function=
- Only one at a time
</IMPORTANT>
"""
TEXT_CALL = """I look.

<function=bash>
<parameter=command>
ls
cat a.py
</parameter>
<parameter=lines>[1, -1]</parameter>
<parameter=seconds>5</parameter>
</function>"""
SHELL = Message(
    role=Role.ASSISTANT,
    content="I look.",
    tool_calls=(ToolCall(name="bash", arguments={"command": "ls\ncat a.py", "lines": [1, -1], "seconds": 5}),),
)
END = Message(role=Role.ASSISTANT, content="Done.", tool_calls=(ToolCall(name="submit", arguments={}),))
REPAIR = Message(role=Role.SYSTEM, content="You repair code.")
ISSUE = Message(role=Role.USER, content="It crashes.")
FENCED = Message(role=Role.ASSISTANT, content="I look.\n```\nls\n```")
LISTING = Message(role=Role.USER, content="a.py")
SUBMITTED = Message(role=Role.ASSISTANT, content="```\nsubmit\n```")

HERMES_CALL = '<tool_call>\n{"name": "find_order", "arguments": {"order_id": 17}}\n</tool_call>'
PYTHON_CALL = "<tool_call>\n{'arguments': {'order_id': 17}, 'name': 'find_order'}\n</tool_call>\n"
QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    + json.dumps(FIND_ORDER)
    + "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
TOOLACE_PROMPT = (
    "You call functions.\nHere is a list of functions in JSON format that you can invoke:\n"
    '[{"name": "Find Order", "description": "One order.", "parameters": {"type": "dict", '
    '"properties": {"order_id": {"type": "int"}}, "required": ["order_id"]}, "required": null}]. \n'
    "Should you decide to return the function call(s). \nPut it in the format of "
    "[func1(params_name=params_value, params_name2=params_value2...), func2(params)]\n\n"
    "NO other text MUST be included. \n"
)
TOOLACE_TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "Find Order",
        "description": "One order.",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "integer"}},
            "required": ["order_id"],
        },
    },
}


def sharegpt_items(*items: tuple[str, str]) -> list[Json]:
    return [{"from": name, "value": value} for name, value in items]


def chat_messages(*items: tuple[str, str]) -> list[Json]:
    return [{"role": name, "content": value} for name, value in items]


def call_metadata(call_id: str, **more: Json) -> JsonObject:
    """Fields that OpenHands writes beside an action and the observation that answers it."""
    message: JsonObject = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": OPENAI_CALL}],
    }
    return {
        "function_name": "find_order",
        "tool_call_id": call_id,
        "model_response": {"id": f"response-{call_id}", "choices": [{"message": message}], **more},
        "total_calls_in_response": 1,
    }


EXAMPLES: dict[str, Example] = {
    "trl": Example(
        format="trl",
        row={
            "id": "t",
            "prompt": OPENAI_MESSAGES[:1],
            "completion": OPENAI_MESSAGES[1:],
            "tools": TOOLS,
            "label": True,
        },
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
        passed=True,
    ),
    "trl, texts": Example(
        format="trl",
        row={"prompt": "Where is order 17?", "completion": "It is on its way."},
        messages=(USER, ANSWER),
    ),
    "trl, a turn in the middle": Example(
        format="trl",
        row={"id": "m", "prompt": OPENAI_MESSAGES[:3], "completion": OPENAI_MESSAGES[3:], "label": False},
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        passed=False,
    ),
    "verifiers": Example(
        format="verifiers",
        row={
            "example_id": 3,
            "prompt": OPENAI_MESSAGES[:1],
            "reward": 1.0,
            "answer": "sent",
            "error": None,
            "completion": [
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": ['{"id": "call_1", "name": "find_order", "arguments": "{\\"order_id\\": 17}"}'],
                },
                *OPENAI_MESSAGES[2:],
            ],
            "tool_defs": [FIND_ORDER["function"]],
            "is_completed": True,
            "is_truncated": False,
            "metrics": {},
        },
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
        passed=True,
        task="3",
    ),
    "verifiers, cut off": Example(
        format="verifiers",
        row={
            "example_id": 4,
            "prompt": "Where is order 17?",
            "completion": "It is on its way.",
            "reward": 1.0,
            "is_truncated": True,
        },
        messages=(USER, ANSWER),
        passed=False,
        task="4",
    ),
    "harbor": Example(
        format="harbor",
        row={
            "schema_version": "ATIF-v1.5",
            "session_id": "run-17",
            "reward": 1.0,
            "agent": {"name": "desk", "version": "1", "tool_definitions": [FIND_ORDER]},
            "steps": [
                {"step_id": 1, "source": "user", "message": "Where is order 17?"},
                {
                    "step_id": 2,
                    "source": "agent",
                    "message": "",
                    "model_name": "m",
                    "tool_calls": [{"tool_call_id": "call_1", "function_name": "find_order", "arguments": ARGUMENTS}],
                    "observation": {"results": [{"source_call_id": "call_1", "content": SENT}]},
                },
                {"step_id": 3, "source": "agent", "message": [{"type": "text", "text": "It is on its way."}]},
            ],
            "final_metrics": {"total_steps": 3},
        },
        messages=(USER, CALL_1, replace(RESULT_1, name=None), ANSWER),
        tools=(FIND_ORDER,),
        passed=True,
    ),
    "harbor, commands in text": Example(
        format="harbor",
        row={
            "schema_version": "ATIF-v1.4",
            "session_id": "run-18",
            "agent": {"name": "terminus", "version": "2"},
            "steps": [
                {"step_id": 1, "source": "system", "message": SYSTEM.content},
                {"step_id": 2, "source": "user", "message": USER.content},
                {
                    "step_id": 3,
                    "source": "agent",
                    "message": "ls",
                    "reasoning_content": "Look.",
                    "observation": {"results": [{"content": "orders.db"}]},
                },
                {"step_id": 4, "source": "agent", "message": ANSWER.content},
            ],
        },
        messages=(
            SYSTEM,
            USER,
            Message(role=Role.ASSISTANT, content="ls", reasoning="Look."),
            Message(role=Role.USER, content="orders.db"),
            ANSWER,
        ),
    ),
    "openai": Example(
        format="openai",
        row={"messages": OPENAI_MESSAGES, "tools": [FIND_ORDER], "reward": 1.0, "task_id": 3, "trial": 0},
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
        passed=True,
        task="3",
    ),
    "openai, tau-bench's log": Example(
        format="openai",
        row={"traj": OPENAI_MESSAGES, "reward": 0.0, "task_id": 3, "trial": 1, "info": {}},
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        passed=False,
        task="3",
    ),
    "openai, before tool_calls": Example(
        format="openai",
        row={
            "messages": [
                OPENAI_MESSAGES[0],
                {"role": "assistant", "content": None, "function_call": OPENAI_CALL},
                {"role": "function", "name": "find_order", "content": SENT},
                OPENAI_MESSAGES[3],
            ],
            "functions": [FIND_ORDER["function"]],
        },
        messages=(USER, CALL, Message(role=Role.TOOL, content=SENT, name="find_order"), ANSWER),
        tools=(FIND_ORDER,),
    ),
    "sharegpt": Example(
        format="sharegpt",
        row={
            "conversations": sharegpt_items(
                ("human", "Where is order 17?"),
                ("function_call", json.dumps({"name": "find_order", "arguments": ARGUMENTS})),
                ("observation", SENT),
                ("gpt", "It is on its way."),
            ),
            "system": "You work in a shop.",
            "tools": json.dumps([FIND_ORDER["function"]]),
        },
        messages=(SYSTEM, USER, CALL, RESULT, ANSWER),
        tools=(FIND_ORDER,),
    ),
    "sharegpt, parallel calls": Example(
        format="sharegpt",
        row={
            "conversations": sharegpt_items(
                ("user", "Where is order 17?"),
                ("assistant", "Both."),
                ("function_call", json.dumps([{"name": "find_order", "arguments": {"order_id": i}} for i in (17, 18)])),
                ("tool", SENT),
                ("tool", "lost"),
                ("gpt", "It is on its way."),
            ),
            "tools": "",
        },
        messages=(USER, TWO_CALLS, RESULT, LOST, ANSWER),
    ),
    "sharegpt, ToolACE": Example(
        format="sharegpt",
        row={
            "system": TOOLACE_PROMPT,
            "conversations": sharegpt_items(
                ("user", "Where is order 17?"),
                ("assistant", "[Find Order(order_id=17), Find Order(order_id=18)]"),
                ("tool", SENT),
                ("assistant", "It is on its way."),
            ),
        },
        messages=(
            Message(role=Role.SYSTEM, content="You call functions."),
            USER,
            Message(
                role=Role.ASSISTANT,
                tool_calls=tuple(ToolCall(name="Find Order", arguments={"order_id": i}) for i in (17, 18)),
            ),
            RESULT,
            ANSWER,
        ),
        tools=(TOOLACE_TOOL,),
    ),
    "openhands, nebius": Example(
        format="openhands",
        row={
            "trajectory_id": "t-1",
            "instance_id": "repo-1",
            "repo": "a/b",
            "trajectory": OPENAI_MESSAGES,
            "tools": [FIND_ORDER],
            "model_patch": "diff",
            "exit_status": "submit",
            "resolved": 1,
        },
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
        passed=True,
        task="repo-1",
    ),
    "openhands, schemas as JSON strings": Example(
        format="openhands",
        row={
            "instance_id": "repo-1",
            "run_id": "model-run_1",
            "resolved": False,
            "messages": [{"function_call": None, "name": None, **item} for item in OPENAI_MESSAGES],  # type: ignore[dict-item]
            "tools": [json.dumps(FIND_ORDER)],
        },
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
        passed=False,
        task="repo-1",
    ),
    "openhands, calls in text": Example(
        format="openhands",
        row={
            "messages": chat_messages(
                ("system", TEXT_PROMPT),
                ("user", "It crashes."),
                ("assistant", TEXT_CALL),
                ("user", "EXECUTION RESULT of [bash]:\na.py"),
                ("assistant", "Done.\n\n<function=submit>\n</function>"),
            )
        },
        messages=(REPAIR, ISSUE, SHELL, Message(role=Role.TOOL, content="a.py", name="bash"), END),
        tools=(BASH, SUBMIT),
    ),
    "openhands, a completion": Example(
        format="openhands",
        row={
            "messages": OPENAI_MESSAGES[:3],
            "response": {"id": "r", "choices": [{"message": OPENAI_MESSAGES[3]}]},
            "kwargs": {"tools": [FIND_ORDER]},
            "cost": 0.1,
        },
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
    ),
    "openhands, output.jsonl": Example(
        format="openhands",
        row={
            "instance_id": "repo-1",
            "metadata": {"llm_config": None},
            "history": [
                {"action": "system", "source": "agent", "args": {"content": SYSTEM.content, "tools": [FIND_ORDER]}},
                {"action": "message", "source": "user", "args": {"content": USER.content, "image_urls": None}},
                {"action": "recall", "source": "user", "args": {"query": "order"}},
                {
                    "observation": "recall",
                    "content": "Added",
                    "extras": {"date": "2025-04-01", "repo_instructions": ""},
                },
                {"action": "run", "source": "agent", "args": {}, "tool_call_metadata": call_metadata("call_1")},
                {"observation": "run", "content": SENT, "tool_call_metadata": call_metadata("call_1"), "extras": {}},
                {"observation": "agent_state_changed", "content": "", "extras": {}},
                {"action": "message", "source": "agent", "args": {"content": ANSWER.content}},
            ],
            "test_result": {"git_patch": "diff", "report": {"resolved": True}},
        },
        messages=(SYSTEM, USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
        passed=True,
        task="repo-1",
    ),
    "swe-agent, .traj with calls": Example(
        format="swe-agent",
        row={
            "environment": "main",
            "trajectory": [{"action": "ls", "observation": "a.py", "thought": "I look."}],
            "history": [
                {"role": "system", "content": "You repair code.", "agent": "main", "message_type": "system_prompt"},
                {"role": "user", "content": [{"type": "text", "text": "It crashes."}], "agent": "main"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "thought": "I look.",
                    "action": "ls",
                    "agent": "main",
                    "tool_calls": [
                        {
                            "index": 1,
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                        }
                    ],
                    "thinking_blocks": [{"type": "thinking", "thinking": "Hm."}],
                },
                {"role": "tool", "content": "a.py", "agent": "main", "tool_call_ids": ["call_1"]},
                {"role": "assistant", "content": "Exit due to cost limit", "agent": "main", "tool_calls": None},
                {"role": "user", "content": "Exited (autosubmitted)", "agent": "main"},
            ],
            "info": {"exit_status": "submitted (exit_cost)", "submission": "diff"},
            "replay_config": "{}",
        },
        messages=(
            REPAIR,
            ISSUE,
            Message(
                role=Role.ASSISTANT,
                content="I look.",
                reasoning="Hm.",
                tool_calls=(ToolCall(name="bash", arguments={"command": "ls"}, id="call_1"),),
            ),
            Message(role=Role.TOOL, content="a.py", tool_call_id="call_1"),
        ),
    ),
    "swe-agent, .traj of text": Example(
        format="swe-agent",
        row={
            "trajectory": [],
            "history": [
                {"role": "system", "content": "You repair code.", "agent": "primary"},
                {"role": "user", "content": "It crashes.", "agent": "primary"},
                {"role": "assistant", "content": FENCED.content, "action": "ls\n", "agent": "primary"},
                {"role": "user", "content": "a.py", "agent": "primary"},
                {"role": "assistant", "content": SUBMITTED.content, "action": "submit\n", "agent": "primary"},
            ],
            "info": {},
        },
        messages=(REPAIR, ISSUE, FENCED, LISTING, SUBMITTED),
    ),
    "swe-agent, nebius": Example(
        format="swe-agent",
        row={
            "instance_id": "repo-1",
            "model_name": "llama",
            "target": True,
            "trajectory": [
                {"role": "system", "system_prompt": "You repair code.", "text": None, "mask": False},
                {"role": "user", "system_prompt": None, "text": "It crashes.", "mask": False},
                {"role": "ai", "system_prompt": None, "text": FENCED.content, "mask": True},
                {"role": "user", "system_prompt": None, "text": "a.py", "mask": False},
                {"role": "ai", "system_prompt": None, "text": SUBMITTED.content, "mask": True},
            ],
            "exit_status": "submitted",
            "generated_patch": "diff",
            "eval_logs": "ok",
        },
        messages=(REPAIR, ISSUE, FENCED, LISTING, SUBMITTED),
        passed=True,
        task="repo-1",
    ),
    "swe-agent, SWE-smith": Example(
        format="swe-agent",
        row={
            "messages": json.dumps(
                chat_messages(
                    ("system", TEXT_PROMPT),
                    ("user", "It crashes."),
                    ("assistant", TEXT_CALL),
                    ("user", "OBSERVATION:\na.py"),
                    ("assistant", "Done.\n\n<function=submit>\n</function>"),
                )
            ),
            "instance_id": "repo-1",
            "resolved": True,
            "model": "claude",
            "traj_id": "repo-1.abc",
            "patch": "diff",
        },
        messages=(REPAIR, ISSUE, SHELL, Message(role=Role.TOOL, content="OBSERVATION:\na.py"), END),
        tools=(BASH, SUBMIT),
        passed=True,
        task="repo-1",
    ),
    "hermes, ShareGPT": Example(
        format="hermes",
        row={
            "id": "h-1",
            "conversations": sharegpt_items(
                ("system", f"You call functions within <tools> </tools> tags. <tools> [{FIND_ORDER}] </tools> Plan."),
                ("human", "Where is order 17?"),
                ("gpt", f"Both.\n{PYTHON_CALL}{HERMES_CALL.replace('17', '18')}"),
                ("tool", f"<tool_response>\n{SENT}\n</tool_response>\n<tool_response>\nlost\n</tool_response>\n"),
                ("gpt", "It is on its way."),
            ),
            "tools": None,
            "category": "shop",
        },
        messages=(
            Message(role=Role.SYSTEM, content="You call functions within <tools> </tools> tags.  Plan."),
            USER,
            TWO_CALLS,
            RESULT,
            LOST,
            ANSWER,
        ),
        tools=(FIND_ORDER,),
        task="h-1",
    ),
    "hermes, Qwen's text": Example(
        format="hermes",
        row={
            "messages": chat_messages(
                ("system", f"You work in a shop.\n\n{QWEN_TOOLS}"),
                ("user", "Where is order 17?"),
                ("assistant", f"<think>\nI use <tool_call>.\n</think>\n\n{HERMES_CALL}"),
                ("user", f"<tool_response>\n{SENT}\n</tool_response>"),
                ("assistant", "It is on its way."),
            ),
            "passed": True,
        },
        messages=(
            SYSTEM,
            USER,
            Message(role=Role.ASSISTANT, reasoning="I use <tool_call>.", tool_calls=CALL.tool_calls),
            RESULT,
            ANSWER,
        ),
        tools=(FIND_ORDER,),
        passed=True,
    ),
    "hermes, Qwen's coder": Example(
        format="hermes",
        row={
            "messages": json.dumps(
                chat_messages(
                    ("user", "Where is order 17?"),
                    (
                        "assistant",
                        "<tool_call>\n<function=find_order>\n<parameter=order_id>\n17\n</parameter>\n</function>\n</tool_call>",
                    ),
                    ("tool", SENT),
                    ("assistant", "It is on its way."),
                )
            ),
            "tools": TOOLS,
        },
        messages=(USER, CALL, RESULT, ANSWER),
        tools=(FIND_ORDER,),
    ),
    "toucan": Example(
        format="toucan",
        row={
            "uuid": "u-1",
            "subset_name": "single-turn-original",
            "messages": json.dumps(
                [
                    {
                        "role": "system",
                        "content": f"<|im_system|>tool_declare<|im_middle|>{TOOLS}<|im_end|>",
                    },
                    {"role": "user", "content": "Where is order 17?"},
                    {"role": "assistant", "content": "Both."},
                    *(
                        {
                            "role": "assistant",
                            "content": "",
                            "function_call": {"name": "find_order", "arguments": json.dumps({"order_id": number})},
                        }
                        for number in (17, 18)
                    ),
                    {"role": "function", "content": SENT, "name": "find_order"},
                    {"role": "function", "content": "lost", "name": "find_order"},
                    {"role": "assistant", "content": "It is on its way."},
                ]
            ),
            "question": "Where is order 17?",
            "available_tools": TOOLS,
            "target_tools": "find_order",
            "question_quality_assessment": "{}",
            "response_quality_assessment": "{}",
            "metadata": '{"mcp_servers": []}',
        },
        messages=(
            USER,
            TWO_CALLS,
            Message(role=Role.TOOL, content=SENT, name="find_order"),
            Message(role=Role.TOOL, content="lost", name="find_order"),
            ANSWER,
        ),
        tools=(FIND_ORDER,),
        task="u-1",
    ),
    "toucan, for SFT": Example(
        format="toucan",
        row={
            "messages": json.dumps(
                chat_messages(
                    ("user", "Where is order 17?"),
                    ("tool_call", str(OPENAI_CALL)),
                    ("tool_response", SENT),
                    ("assistant", "It is on its way."),
                )
            ),
            "question": "Where is order 17?",
            "tools": TOOLS,
            "target_tools": "find_order",
        },
        messages=(USER, CALL, RESULT, ANSWER),
        tools=(FIND_ORDER,),
    ),
    "played": Example(
        format="played",
        row={
            "id": "problems-1-0",
            "task_id": "problems-1",
            "trial": 0,
            "messages": OPENAI_MESSAGES,
            "tools": [FIND_ORDER],
            "metadata": {},
            "passed": True,
            "reward": 1.0,
            "verdict": {"score": 1.0, "reason": "solved"},
            "player": "human",
            "rollout": {"stop_reason": "answered"},
        },
        messages=(USER, CALL_1, RESULT_1, ANSWER),
        tools=(FIND_ORDER,),
        passed=True,
        task="problems-1",
    ),
}
