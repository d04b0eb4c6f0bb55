"""verifiers.shell in mode `execution`: output, exit code and files of both commands are compared."""

import pytest

from tests.support.factories import make_turn
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Message, Role, Verdict
from verl_pivot.verifiers.registry import get_verifier

SETUP = "mkdir src docs; printf 'b\\na\\nc\\n' > src/names.txt; echo old > docs/old.md; ln -s src/names.txt link"

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def judge(command: str, expert: str, setup: str = SETUP) -> Verdict:
    def block(text: str) -> Message:
        return Message(role=Role.ASSISTANT, content=f"```bash\n{text}\n```")

    options = {"mode": "execution", "setup": setup, "wall_seconds": 3.0}
    return await get_verifier("shell", options)(block(command), make_turn(expert=block(expert)))


@pytest.mark.parametrize(
    ("expert", "command"),
    [
        ("sort src/names.txt > src/sorted.txt", "cat src/names.txt | sort | tee src/sorted.txt > /dev/null"),
        ("rm -r docs", "rm docs/old.md && rmdir docs"),
        ("wc -l < src/names.txt", "echo 3"),
        ("ls docs", "cd docs; ls"),
        ("grep -q zebra src/names.txt", "false"),
        ("mv docs/old.md docs/new.md", "cp docs/old.md docs/new.md; rm docs/old.md"),
    ],
)
async def test_another_command_with_the_same_effect_is_accepted(expert: str, command: str) -> None:
    verdict = await judge(command, expert)

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


EXPERT = "sort src/names.txt > src/sorted.txt"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (":", "wrong_output"),
        ("exit 0", "wrong_output"),
        ("touch src/sorted.txt", "wrong_output"),
        ("sort -r src/names.txt > src/sorted.txt", "wrong_output"),
        (f"{EXPERT}; echo done", "wrong_output"),
        (f"{EXPERT}; touch extra", "wrong_output"),
        (f"{EXPERT}; exit 1", "wrong_output"),
        (f"{EXPERT}; chmod 600 src/sorted.txt", "wrong_output"),
        (f"{EXPERT}; rm link; cp src/names.txt link", "wrong_output"),
        ("ln -s names.txt src/sorted.txt", "wrong_output"),
        ("kill -9 $PPID", "runtime_error"),
        ("while :; do :; done", "time_limit"),
        ("yes", "output_limit"),
        ("cat /tmp/setup.sh /tmp/command.sh > src/sorted.txt", "wrong_output"),
    ],
)
async def test_another_effect_is_refused(command: str, reason: str) -> None:
    verdict = await judge(command, EXPERT)

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize(
    ("expert", "setup", "detail"),
    [
        ("cd src", SETUP, "prints nothing and changes nothing"),
        ("while :; do :; done", SETUP, "timeout"),
        ("ls", "exit 3", "error"),
    ],
)
async def test_an_expert_without_an_effect_to_compare_is_undecided(expert: str, setup: str, detail: str) -> None:
    verdict = await judge(expert, expert, setup)

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert detail in verdict.detail
