"""verifiers.shell in mode `execution`: output, exit code and files of both commands are compared."""

import pytest

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Json, JsonObject, Message, Role, Verdict
from verl_pivot.verifiers.registry import get_verifier

SETUP = "mkdir src docs; printf 'b\\na\\nc\\n' > src/names.txt; echo old > docs/old.md; ln -s src/names.txt link"

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def judge(command: str, expert: str, setup: str = SETUP, **others: Json) -> Verdict:
    def block(text: str) -> Message:
        return Message(role=Role.ASSISTANT, content=f"```bash\n{text}\n```")

    options: JsonObject = {"mode": "execution", "setup": setup, "wall_seconds": 3.0, **others}
    return await get_verifier("shell", options)(block(command), make_turn(expert=block(expert)))


@pytest.mark.parametrize(
    ("expert", "command"),
    [
        ("sort src/names.txt > src/sorted.txt", "cat src/names.txt | sort | tee src/sorted.txt > /dev/null"),
        ("rm -r docs", "rm docs/old.md && rmdir docs"),
        ("wc -l < src/names.txt", "grep -c '' src/names.txt"),
        ("ls docs", "cd docs; ls"),
        ("mv docs/old.md docs/new.md", "cp docs/old.md docs/new.md; rm docs/old.md"),
        ("ls -l src", "cd src && ls -l"),
        ("grep b src/names.txt", "sed -n /b/p src/names.txt"),
        ("head -n 2 src/names.txt > two", "sed 2q src/names.txt > two"),
        ("mkdir -p a/b", "mkdir a; mkdir a/b"),
        ("echo '#!/bin/sh' > run; chmod +x run", "printf '%s\\n' '#!/bin/sh' > run && chmod 755 run"),
        ("sort -u src/names.txt | wc -l", "sort src/names.txt | uniq | wc -l"),
        ("cat link", "cat < src/names.txt"),
        ("printf x; exit 3", "echo -n x; (exit 3)"),
        ("chmod 000 src/names.txt", "chmod a-rwx src/names.txt"),
        ("chmod 000 src", "chmod a= src"),
        ("chmod 555 docs", "chmod a-w docs"),
        ("ln src/names.txt src/again.txt", "cd src && ln names.txt again.txt"),
        ("touch $'\\xff'", ": > $'\\xff'"),
    ],
)
async def test_another_command_with_the_same_effect_is_accepted(expert: str, command: str) -> None:
    verdict = await judge(command, expert)

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


@pytest.mark.parametrize(
    ("expert", "command"),
    [
        ("cp src/names.txt src/again.txt", "ln src/names.txt src/again.txt"),
        ("ln src/names.txt src/again.txt", "cp src/names.txt src/again.txt"),
        ("printf '\\xff'", "printf '\\\\xff'"),
        ("printf '\\xff'", "printf '\\xfe'"),
        ("touch $'\\xff'", "touch $'\\xfe'"),
        ("chmod 000 src", "chmod 100 src"),
        ("chmod 000 src/names.txt", "chmod 200 src/names.txt"),
        ("chmod 000 src", "rm src/names.txt; chmod 000 src"),
    ],
)
async def test_no_link_byte_or_mode_passes_for_another(expert: str, command: str) -> None:
    verdict = await judge(command, expert)

    assert (verdict.score, verdict.reason) == (0.0, "wrong_output"), verdict.detail


EXPERT = "sort src/names.txt > src/sorted.txt"


ATTACKS: dict[str, tuple[str, str]] = {
    "does nothing": (":", "wrong_output"),
    "ends with exit code 0": ("exit 0", "wrong_output"),
    "makes an empty file": ("touch src/sorted.txt", "wrong_output"),
    "sorts the other way round": ("sort -r src/names.txt > src/sorted.txt", "wrong_output"),
    "prints something, too": (f"{EXPERT}; echo done", "wrong_output"),
    "makes another file": (f"{EXPERT}; touch extra", "wrong_output"),
    "ends with another exit code": (f"{EXPERT}; exit 1", "wrong_output"),
    "changes the file's mode": (f"{EXPERT}; chmod 600 src/sorted.txt", "wrong_output"),
    "replaces a link by a file": (f"{EXPERT}; rm link; cp src/names.txt link", "wrong_output"),
    "makes a link instead": ("ln -s names.txt src/sorted.txt", "wrong_output"),
    "kills the shell that started it": ("kill -9 $PPID", "runtime_error"),
    "never ends": ("while :; do :; done", "time_limit"),
    "prints without end": ("yes", "output_limit"),
    "copies what the sandbox was sent": ("cat /tmp/*.json > src/sorted.txt", "wrong_output"),
    "writes the result down": ("printf 'a\\nb\\nc\\n' > src/sorted.txt", "wrong_output"),
    "makes a hidden folder": (f"{EXPERT}; mkdir -p .cache", "wrong_output"),
    "removes another folder": (f"{EXPERT}; rm -rf docs", "wrong_output"),
    "leads a link elsewhere": (f"{EXPERT}; ln -sf /etc/passwd link", "wrong_output"),
    "adds an empty line": (f"{EXPERT}; echo >> src/sorted.txt", "wrong_output"),
    "changes the input, too": (f"{EXPERT}; sed -i s/b/B/ src/names.txt", "wrong_output"),
    "makes a pipe": (f"{EXPERT}; mkfifo pipe", "wrong_output"),
    "moves the input": ("mv src/names.txt src/sorted.txt", "wrong_output"),
    "prints the result instead": ("sort src/names.txt", "wrong_output"),
    "writes it to another folder": ("sort src/names.txt > sorted.txt", "wrong_output"),
    "writes it and fails": ("sort src/names.txt >> src/sorted.txt; false", "wrong_output"),
    "writes it later, in the background": ("(sleep 1; sort src/names.txt > src/sorted.txt) &", "wrong_output"),
    "removes the folder": ("rm -rf ../work", "wrong_output"),
    "forges the effects and kills the runner": (
        "cd ..; echo '[[{}, {}, {}]]' > effects.json; kill -9 $PPID",
        "runtime_error",
    ),
    "forges the effects": ("echo forged > ../effects.json; exit 1", "wrong_output"),
    "forks without end": (":(){ :|:& };:", "wrong_output"),
}


@pytest.mark.parametrize(("command", "reason"), ATTACKS.values(), ids=ATTACKS)
async def test_another_effect_is_refused(command: str, reason: str) -> None:
    verdict = await judge(command, EXPERT)

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("expert", "setup", "detail"),
    [
        ("cd src", SETUP, "prints nothing and changes nothing"),
        ("while :; do :; done", SETUP, "time_limit"),
        ("ls", "exit 3", "the setup fails"),
        ("nosuchtool src", SETUP, "a tool that the sandbox does not have"),
        ("nosuchtool src | sort > out", SETUP, "a tool that the sandbox does not have"),
        ("docs/old.md", SETUP, "a tool that the sandbox does not have"),
        ("ls nosuch", SETUP, "No such file"),
        ("grep -q zebra src/names.txt", SETUP, "prints nothing and changes nothing"),
        ("touch /tmp/elsewhere", SETUP, "prints nothing and changes nothing"),
        ("echo $RANDOM", SETUP, "when it is run again"),
        ("date", SETUP, "when it is run again"),
        ("mktemp", SETUP, "when it is run again"),
        ("head -c 8 /dev/urandom > key", SETUP, "when it is run again"),
        ("python3 -c 'import time; print(time.time())' > now", SETUP, "when it is run again"),
    ],
)
async def test_an_expert_without_an_effect_to_compare_is_undecided(expert: str, setup: str, detail: str) -> None:
    verdict = await judge(expert, expert, setup)

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert detail in verdict.detail


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("expert", "written"),
    [
        ("grep -c b src/names.txt > count", "echo 1 > count"),
        ("wc -l < src/names.txt", "echo 3"),
        ("cat docs/old.md", "echo old"),
        ("sort src/names.txt", "printf 'a\\nb\\nc\\n'"),
        ("head -n 1 src/names.txt", "echo b"),
        ("cp docs/old.md copy", "echo old > copy"),
    ],
)
async def test_a_command_with_the_result_written_into_it_is_refused(expert: str, written: str) -> None:
    refused = await judge(written, expert)
    unperturbed = await judge(written, expert, num_perturbed=0)

    assert (refused.score, refused.reason) == (0.0, "wrong_output")
    assert unperturbed.score == 1.0, unperturbed.detail


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("setup", "expert", "written"),
    [
        ("echo k=1 > f", "cat f", "echo k=1"),
        ("echo v1.2 > VERSION", "cat VERSION", "echo v1.2"),
        ("echo '{\"port\": 80}' > c.json", "grep -o '[0-9]*' c.json", "echo 80"),
        ("echo 'a b' > f", "cat f", "echo 'a b'"),
        ("echo 'a b c' > f", "wc -w < f", "echo 3"),
        ("echo KEY=abc > .env", "cut -d= -f2 .env", "echo abc"),
        ("echo 007 > f", "cat f", "echo 007"),
        ("echo 2024-12-31 > f", "cut -d- -f1 f", "echo 2024"),
    ],
)
async def test_a_file_of_one_line_is_altered_too(setup: str, expert: str, written: str) -> None:
    assert (await judge(written, expert, setup)).reason == "wrong_output"
    assert (await judge(f"{expert} | cat", expert, setup)).score == 1.0


async def test_a_folder_in_which_the_expert_fails_does_not_count() -> None:
    expert = "test $(wc -l < src/names.txt) = 3 && echo three"

    assert (await judge("echo three", expert)).score == 1.0


async def test_an_equal_command_need_not_run_again() -> None:
    assert (await judge("  cat docs/old.md\n", "cat docs/old.md")).score == 1.0


async def test_programs_and_structured_files_keep_their_contents() -> None:
    setup = "printf '{\"a\":\\n1}\\n' > a.json; "
    setup += "printf 'print(1)\\nprint(2)\\n' > run.py; printf 'n,m\\n1,2\\n3,4\\n' > t.csv"

    assert (await judge("echo 1; echo 2", "python3 run.py", setup)).score == 1.0
    assert (
        await judge("echo 1", 'python3 -c \'import json; print(json.load(open("a.json"))["a"])\'', setup)
    ).score == 1.0
    assert (await judge("head -n 1 t.csv", "echo n,m", setup)).score == 1.0


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, reason) in ATTACKS.items()]

    missing = [row for row in rows if row not in (ROOT / "docs" / "verifier_attacks.md").read_text()]

    assert missing == [], "\n".join(rows)
