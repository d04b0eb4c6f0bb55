"""Lines of the same form do the same in bash: tested on mutants of typical lines, with external commands replaced."""

import random
from collections import defaultdict

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from tests.support.shell_judge import effects, have_one_effect
from verl_pivot.verifiers.shell_forms import Form, TextForm, form_of

LINES = [
    "rm -rf build/old && grep -n 'def main' src/app.py | head -n 5 > out.txt",
    "cd /tmp; ls -la ./src//app *.py",
    "cat <<EOF > run.sh\nexec server --port 80 --user $USER\nEOF",
    "find . -name '*.py' -exec rm {} \\; -print",
    '[ -f a.py ] && echo yes || echo "no $b"',
    "for f in *.py; do echo $f; done; make install",
    "if [ -d src ]; then ls src; else mkdir -p src && ls -l; fi",
    "A=1 B='x y' make all CC=gcc 2>&1 | tail -20 >> log",
    'case "$1" in a) ls -l;; *) rm -r -f b ;; esac',
    "if false; then :; elif ls; then a; else b; fi; { echo a; echo b; } > out 2> err",
    'echo $(date +%s) `id -u` "$(cat a.py)" ${b:-x} $b"$b" ${b}c',
    "rm -rf 'x y' z; rm -- -f a; rm --recursive --force q",
    "diff <(sort a) <(sort b); (cd src && ls) &",
    "grep -e a -A 3 b.py --ignore-case; head -5 a.py; sort -k 2 -t : a",
    "xargs -I{} rm {} < list; echo a > f 2>&1 < g",
    "make install \\\n  --jobs 4  # build first\nls -a -l",
    "echo \"it's $HOME/'x' \\\"q\\\" \\$b\" 'a\\b' a\\ b \\\\ \\#c #d",
    "ls ~ '~' {a,b} '{a,b}' [ab].py '[ab].py' \"a*\"; ! false",
    "python -c 'print(1)' && exit 3; printf '%s\\n' a{1..3}b $((1 + 2))",
    "x=$b; echo $x \"$x\" '$x' $'a\\tb' $? ; cp -r a b -v; cd -; cat - ./- ./a",
    "[[ $b == x* ]] && echo a; ((1 < 2)) && echo b; f() { ls -l -a; }; f",
    "echo a|cat|cat>o;ls -l;echo b&&echo c||echo d&",
]
LETTERS = " \t\n\\'\"`$;&|<>(){}[]*?~!#=-./,:ab1fl0"
INSERTED = [
    "\\\n",
    " \\\n ",
    "# c\n",
    " # c\n",
    "''",
    '""',
    "-- ",
    "--a ",
    "-l ",
    " 2>",
    "<<E\n",
    "<<<",
    "$b",
    "${b}",
    "$(a)",
    " in ",
    " do ",
    "\n\n",
    ";;",
    "((",
    "[[",
]
GAPS = [" ", "  ", "\t", "\n", ";", " ; ", "", " \\\n", "\\\n", "\\ "]
REPLACED = [("'", '"'), ('"', "'"), ("; ", "\n"), ("\n", "; "), ("-l ", "-l -a "), ("$b", "${b}")]


def mutant(rng: random.Random, line: str) -> str:
    """The line with one small change at a random place."""
    at = rng.randrange(len(line) + 1)
    end = min(len(line), at + rng.choice([1, 1, 1, 2, 4, 8]))
    quote = rng.choice("'\"")
    words = line.split(" ")
    first, second = (rng.randrange(len(words)) for _ in range(2))
    swapped = [words[{first: second, second: first}.get(number, number)] for number in range(len(words))]
    gap = rng.choice([number for number, letter in enumerate(line) if letter in " \n;"] or [0])
    return rng.choice(
        [
            line[:at] + line[end:],
            line[:at] + rng.choice(LETTERS) + line[at:],
            line[:at] + rng.choice(LETTERS) + line[at + 1 :],
            line[:at] + rng.choice(INSERTED) + line[at:],
            line[:at] + quote + line[at:end] + quote + line[end:],
            line[:at] + line[at:end] * 2 + line[end:],
            line[:gap] + rng.choice(GAPS) + line[gap + 1 :],
            " ".join(swapped),
            line.replace(*rng.choice(REPLACED), 1),
        ]
    )


def groups_of_one_form(num_mutants: int, seed: int) -> list[list[str]]:
    """Groups of at least two mutants with the same form; lines with no form or only a TextForm are left out."""
    rng = random.Random(seed)
    groups: defaultdict[Form, set[str]] = defaultdict(set)
    for _ in range(num_mutants):
        line = rng.choice(LINES)
        for _ in range(rng.choice([1, 1, 2, 3, 5])):
            line = mutant(rng, line)
        form = form_of(line)
        if form is not None and not isinstance(form, TextForm):
            groups[form].add(line)
    return [sorted(lines) for lines in groups.values() if len(lines) > 1]


@pytest.mark.heavy
@needs_sandbox
@pytest.mark.parametrize("num_mutants", [3_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_lines_of_one_form_do_the_same_in_bash(num_mutants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)
    groups = groups_of_one_form(num_mutants, seed=num_mutants)
    lines = [line for group in groups for line in group]
    done: dict[str, str | None] = {}
    for begin in range(0, len(lines), 100):
        part = lines[begin : begin + 100]
        done |= zip(part, await effects(part), strict=True)

    different = [{line: done[line] for line in group} for group in groups if not await have_one_effect(group, done)]

    assert different == []
    assert sum(effect is not None for effect in done.values()) >= num_mutants // 25
