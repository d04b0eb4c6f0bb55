"""verifiers.terminal_lines: lines after which bash, and not a program, reads what is typed next."""

import pytest

from verl_pivot.verifiers.terminal_lines import returns_to_prompt


@pytest.mark.parametrize(
    "line",
    [
        "ls -l",
        "cat a",
        "cat a 2> /dev/null",
        "mkdir -p a/b && cd a/b",
        "cat a | grep x | wc -l",
        "export A=1",
        "rm -f a",
        "echo x > /dev/null",
    ],
)
def test_commands_that_leave_the_terminal_alone_return_to_the_prompt(line: str) -> None:
    assert returns_to_prompt(line)


@pytest.mark.parametrize(
    "line",
    [
        "cat",
        "python3",
        "rm a",
        "grep x -",
        "cat > notes.py",
        "cat /dev/stdin > notes.py",
        "cat /dev/tty > n",
        "cat /dev/fd/0",
        "cat /dev/./stdin",
        'cat /d"e"v/stdin',
        "cd /dev; cat stdin",
        "cat /proc/self/fd/0 > n",
        "cat a /dev/stdin",
        "head /dev/tty",
        "cat $FILE",
        "x=$(cat)",
        'echo "$(cat)" > n',
        "ls `cat`",
        "cd $(cat)",
        "export X=$(cat)",
        "ls <(python3)",
    ],
)
def test_a_program_may_read_what_is_typed_next(line: str) -> None:
    assert not returns_to_prompt(line)
