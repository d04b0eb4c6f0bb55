"""CodeComparison -> the question for a certificate, with all texts inside fences, their lines numbered."""

import json

from verl_pivot.verifiers.judge_certificate import LINE_TOLERANCE, Certificate, CertificateOfPlaces, CertificateOfTests
from verl_pivot.verifiers.judge_certificate_files import CodeComparison, QuotableFile, Span
from verl_pivot.verifiers.judge_prompts import Fence, JudgeQuestion

_TASK = (
    "You prove whether two versions of some code do the same, without running them. You write a certificate: premises, "
    "each with a quotation; a trace for each {subject}, which rests on premises; and then the conclusion that follows."
)
_RULES = f"""Rules, which a program checks:
- A premise names a file by its number, a line by its number, and quotes that line (or lines from there on) letter by
  letter, without the number in front; at most {LINE_TOLERANCE} lines off.
- Each trace cites at least one premise, and each premise is cited by a trace.
- Quote both versions where they differ."""
_OF_TESTS = """- Trace each of the {num_subjects} tests once, through version 1 and through version 2.
The conclusion "same" is true if every test has one outcome in both versions, else false.
Answer {{"premises": [{{"number": 1, "file": 2, "line": 14, "quotation": "...", "claim": "..."}}, ...],
"traces": [{{"test": 1, "premises": [1], "steps": "...", "passes_in_version_1": true or false,
"passes_in_version_2": true or false}}, ...], "reason": "...", "same": true or false}}."""
_OF_PLACES = """- Trace each of the {num_subjects} places once, and cite a premise that quotes a line of that place.
The conclusion "same" is true if no place changes what the code does for whoever runs it, else false.
Answer {{"premises": [{{"number": 1, "file": 2, "line": 14, "quotation": "...", "claim": "..."}}, ...],
"traces": [{{"place": 1, "premises": [1], "steps": "...", "does_the_same": true or false}}, ...],
"reason": "...", "same": true or false}}."""


def form_of(comparison: CodeComparison) -> type[Certificate]:
    """Type of the certificate that a comparison needs: of tests, or of places if there are no tests."""
    return CertificateOfTests if comparison.num_tests else CertificateOfPlaces


def certificate_question(state: str, comparison: CodeComparison) -> JudgeQuestion:
    """Question that asks for a certificate; names of files stand inside the fences, since an action chooses them."""
    fence = Fence()
    texts = [fence.around("The conversation so far:", state)]
    for number, file in enumerate(comparison.files, 1):
        texts.append(fence.around(f"File {number}, of {file.owner}:", _numbered(file)))
    if not comparison.num_tests:
        lines = [f"Place {number}: {_described(place)}" for number, place in enumerate(comparison.places, 1)]
        texts.append("\n".join(["Places at which the versions differ:", *lines]))
    num_subjects = comparison.num_tests or len(comparison.places)
    form = _OF_TESTS if comparison.num_tests else _OF_PLACES
    tests = _tests(comparison) if comparison.num_tests else ""
    texts.append(f"{tests}{_RULES}\n{form.format(num_subjects=num_subjects)}")
    task = _TASK.format(subject="test" if comparison.num_tests else "place at which they differ")
    return fence.question(task, "\n\n".join(texts))


def _numbered(file: QuotableFile) -> str:
    lines = [f"{number}| {line}" for number, line in enumerate(file.lines, 1)]
    return "\n".join([f"name: {json.dumps(file.path, ensure_ascii=False)}", *lines])


def _tests(comparison: CodeComparison) -> str:
    numbers = [number for number, file in enumerate(comparison.files, 1) if file.owner == "a test"]
    named = [f"Test {test} is file {number}." for test, number in enumerate(numbers, 1)]
    return " ".join(named) + "\n\n"


def _described(place: tuple[Span, ...]) -> str:
    if len(place) == 1:
        return f"file {place[0].file}, which the other version lacks"
    return " against ".join(_lines(span) for span in place)


def _lines(span: Span) -> str:
    if span.first >= span.behind:
        return f"nothing before line {span.first} of file {span.file}"
    last = span.behind - 1
    lines = f"line {last}" if span.first == last else f"lines {span.first} to {last}"
    return f"{lines} of file {span.file}"
