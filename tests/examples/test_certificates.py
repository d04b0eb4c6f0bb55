"""Pairs of patches, the scripted judge with and without a certificate, and its agreement with execution."""

from examples.certificates.judge import Habits, answering
from examples.certificates.pairs import patch_pairs
from examples.certificates.run import Agreement, outcomes_of
from verl_pivot.verifiers.judge_certificate import problem_of
from verl_pivot.verifiers.judge_certificate_files import compared
from verl_pivot.verifiers.judge_certificate_prompt import certificate_question, form_of


def test_pairs_are_the_same_for_a_seed_and_half_of_them_do_the_same() -> None:
    pairs = patch_pairs(0)
    outcomes = outcomes_of(pairs)

    assert pairs == patch_pairs(0)
    assert sorted(pairs) == sorted(patch_pairs(1))
    same = [outcomes[pair.patch.removesuffix("\n")] == outcomes[pair.expert.removesuffix("\n")] for pair in pairs]
    assert (len(pairs), sum(same)) == (51, 25)
    assert all(all(outcomes[pair.expert.removesuffix("\n")]) for pair in pairs)


def test_careful_certificates_hold_and_sloppy_ones_do_not() -> None:
    pair = patch_pairs(0)[0]
    outcomes = {pair.expert.removesuffix("\n"): [True] * 4, pair.patch.removesuffix("\n"): [False] * 4}
    tests = dict(enumerate(pair.tests))
    named = {f"test {number}": text for number, text in tests.items()}
    comparison = compared({"program": pair.patch}, {"program": pair.expert}, named, passing_version=2)
    question = certificate_question("user: go", comparison).messages

    problems = []
    for sloppy in (0.0, 1.0):
        answer = answering(outcomes, Habits(sloppy=sloppy, hidden=0.0, seed=0))(question)
        certificate = form_of(comparison).model_validate_json(answer)
        problems.append(problem_of(certificate, comparison))

    assert problems[0] is None
    assert problems[1] is not None


def test_a_line_of_the_table() -> None:
    line = Agreement("with certificates", 51, 49, 49, 0, 0).line().strip()

    assert line == (
        "with certificates: 49 of 49 decided agree (1.000 [0.927, 1.000]), wrongly accepted 0, wrongly refused 0, "
        "undecided 2"
    )
