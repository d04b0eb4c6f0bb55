"""Certificate of a judge about two versions of some code -> the problem because of which it proves nothing."""

from collections.abc import Sequence
from typing import TypeAlias

from verl_pivot.validation import Options
from verl_pivot.verifiers.judge_certificate_files import LETTER, CodeComparison, Span

LINE_TOLERANCE = 2
"""Most lines by which a quotation may stand before or after the line that its premise names."""
_MAX_PREMISES = 200
_MIN_LETTERS = 3
"""Fewest letters and digits of a quotation that does not consist of whole lines."""


class Premise(Options):
    """What the judge reads in one file."""

    number: int
    file: int
    line: int
    quotation: str
    claim: str


class TracedTest(Options):
    """How one test runs through both versions."""

    test: int
    premises: list[int]
    """Numbers of the premises that the trace rests on."""
    steps: str
    passes_in_version_1: bool
    passes_in_version_2: bool


class TracedPlace(Options):
    """Whether the versions do the same at one place where they differ."""

    place: int
    premises: list[int]
    steps: str
    does_the_same: bool


class CertificateOfTests(Options):
    """Premises, a trace for each test, and the conclusion, in the order in which they are written."""

    premises: list[Premise]
    traces: list[TracedTest]
    reason: str
    same: bool


class CertificateOfPlaces(Options):
    """Premises, a trace for each place that differs, and the conclusion."""

    premises: list[Premise]
    traces: list[TracedPlace]
    reason: str
    same: bool


Certificate: TypeAlias = CertificateOfTests | CertificateOfPlaces


def problem_of(certificate: Certificate, comparison: CodeComparison) -> str | None:
    """Reason why a certificate does not prove its conclusion; None if it does.

    Every quotation must stand in its file, at most `LINE_TOLERANCE` lines from the line that is stated. Every test, or
    without tests every place, must have one trace that cites premises, and every premise must be cited. Each version
    must be quoted where it differs from the other. The conclusion must follow from the traces, by which the expert's
    version must pass every test.

    Source: the certificate of Agentic Code Reasoning (arXiv:2603.01896): premises, a trace for each test or path, a
    conclusion. The paper only prompts for it; the checks are ours.
    """
    premises = {premise.number: premise for premise in certificate.premises}
    if not premises or len(premises) < len(certificate.premises):
        return "it has no premises" if not premises else "two premises have the same number"
    if len(premises) > _MAX_PREMISES:
        return f"it has {len(premises)} premises, more than {_MAX_PREMISES}"
    quoted: dict[int, Span] = {}
    for number, premise in premises.items():
        span = _quoted(premise, comparison)
        if isinstance(span, str):
            return f"premise {number}: {span}"
        quoted[number] = span
    return (
        _problem_of_traces(certificate, comparison, quoted)
        or _problem_of_places(certificate, comparison, quoted)
        or _problem_of_conclusion(certificate, comparison)
    )


def _quoted(premise: Premise, comparison: CodeComparison) -> Span | str:
    """The lines that a premise quotes, or the problem of its quotation."""
    if not 1 <= premise.file <= len(comparison.files):
        return f"there is no file {premise.file}"
    lines = [line.strip() for line in comparison.files[premise.file - 1].lines]
    quotation = [line.strip() for line in premise.quotation.strip().split("\n")]
    if not LETTER.search(premise.quotation):
        return "it quotes nothing"
    near = sorted(range(-LINE_TOLERANCE, LINE_TOLERANCE + 1), key=abs)
    for first in (premise.line + shift for shift in near if premise.line + shift >= 1):
        behind = first + len(quotation)
        if behind <= len(lines) + 1 and _stands_in(quotation, lines[first - 1 : behind - 1]):
            return Span(premise.file, first, behind)
    return f"file {premise.file} does not have its quotation at line {premise.line}"


def _stands_in(quotation: Sequence[str], lines: Sequence[str]) -> bool:
    """Whether lines contain a quotation, of whose lines the first and the last may be incomplete."""
    text, whole = "\n".join(quotation), "\n".join(lines)
    return text == whole or (text in whole and len(LETTER.findall(text)) >= _MIN_LETTERS)


def _problem_of_traces(certificate: Certificate, comparison: CodeComparison, quoted: dict[int, Span]) -> str | None:
    word = "test" if comparison.num_tests else "place"
    numbers = [_number(trace) for trace in certificate.traces]
    wanted = list(range(1, (comparison.num_tests or len(comparison.places)) + 1))
    if sorted(numbers) != wanted:
        return f"it traces {word}s {sorted(numbers)}, but must trace each of the {len(wanted)} {word}s once"
    for trace in certificate.traces:
        if not trace.premises or not quoted.keys() >= {*trace.premises}:
            return f"the trace of {word} {_number(trace)} cites {trace.premises}, but must cite existing premises"
        if not LETTER.search(trace.steps):
            return f"the trace of {word} {_number(trace)} has no steps"
    cited = {number for trace in certificate.traces for number in trace.premises}
    uncited = sorted(quoted.keys() - cited)
    return f"no trace cites premise {uncited[0]}" if uncited else None


def _number(trace: TracedTest | TracedPlace) -> int:
    return trace.test if isinstance(trace, TracedTest) else trace.place


def _problem_of_places(certificate: Certificate, comparison: CodeComparison, quoted: dict[int, Span]) -> str | None:
    """Reason why the traces miss a difference: each version must be quoted there, and each place by its own trace."""
    for version in ("version 1", "version 2"):
        own = comparison.own_lines(version)
        if own and not any((span.file, line) in own for span in quoted.values() for line in range(*span[1:])):
            return f"it quotes no line that only {version} has"
    for trace in certificate.traces:
        if isinstance(trace, TracedPlace):
            spans = comparison.places[trace.place - 1]
            is_quotable = any(_has_letters(span, comparison) for span in spans)
            if is_quotable and not any(_overlap(span, quoted[number]) for span in spans for number in trace.premises):
                return f"the trace of place {trace.place} cites no line of it"
    return None


def _has_letters(span: Span, comparison: CodeComparison) -> bool:
    lines = comparison.files[span.file - 1].lines[span.first - 1 : span.behind - 1]
    return any(LETTER.search(line) for line in lines)


def _overlap(one: Span, two: Span) -> bool:
    return one.file == two.file and max(one.first, two.first) < min(one.behind, two.behind)


def _problem_of_conclusion(certificate: Certificate, comparison: CodeComparison) -> str | None:
    if isinstance(certificate, CertificateOfPlaces):
        is_same = all(trace.does_the_same for trace in certificate.traces)
    else:
        outcomes = [(trace.passes_in_version_1, trace.passes_in_version_2) for trace in certificate.traces]
        of_expert = [outcome[comparison.passing_version - 1] for outcome in outcomes]
        if not all(of_expert):
            failed = certificate.traces[of_expert.index(False)].test
            return f"it says that test {failed} fails in version {comparison.passing_version}, which is known to pass"
        is_same = all(one == two for one, two in outcomes)
    if certificate.same is not is_same:
        return f"its traces say that the versions are {'' if is_same else 'not '}the same, but its conclusion does not"
    return None
