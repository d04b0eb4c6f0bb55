"""SamplingRecord: differences between two records, and a column of text that keeps a whole record."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.sampling_record import SamplingRecord

RECORD = SamplingRecord(
    model="./sft", model_digest="a1", max_new_tokens=512, temperature=1.0, top_p=1.0, top_k=-1,
    chat_template_kwargs={"enable_thinking": False}, template_digest="b1",
)  # fmt: skip
digests = st.none() | st.sampled_from(["x1", "x2"])
records = st.builds(
    SamplingRecord, model=st.text(max_size=5).filter(str.isprintable), model_digest=digests,
    max_new_tokens=st.integers(1, 9), temperature=st.floats(0, 2), top_p=st.floats(0.1, 1), top_k=st.integers(-1, 9),
    chat_template_kwargs=st.dictionaries(st.sampled_from("ab"), st.booleans() | st.integers(0, 1)),
    template_digest=digests,
)  # fmt: skip


@given(records)
def test_a_record_survives_its_column(record: SamplingRecord) -> None:
    assert SamplingRecord.decoded(record.encoded()) == record
    assert record.differences(SamplingRecord.decoded(record.encoded())) == []


@given(records, records)
def test_differences_are_the_same_from_both_sides(one: SamplingRecord, other: SamplingRecord) -> None:
    assert [(name, there, here) for name, here, there in one.differences(other)] == other.differences(one)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 2048),
        ("temperature", 0.7),
        ("top_p", 0.95),
        ("top_k", 20),
        ("chat_template_kwargs", {}),
        ("chat_template_kwargs", {"enable_thinking": True}),
        ("chat_template_kwargs", {"enable_thinking": 0}),
        ("template_digest", "b2"),
        ("model_digest", "a2"),
    ],
)
def test_every_field_is_compared(name: str, value: object) -> None:
    assert [each.name for each in replace(RECORD, **{name: value}).differences(RECORD)] == [name]
    assert name in {field.name for field in fields(SamplingRecord)}


def test_a_model_that_was_moved_is_the_same_and_without_a_digest_its_name_counts() -> None:
    moved = replace(RECORD, model="/srv/sft")

    assert moved.differences(RECORD) == []
    assert [each.name for each in replace(moved, model_digest=None).differences(RECORD)] == ["model"]
    assert replace(RECORD, model_digest=None).differences(RECORD) == []


def test_a_template_that_is_not_known_on_one_side_is_not_compared() -> None:
    assert replace(RECORD, template_digest=None).differences(RECORD) == []


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"model": "a", "mood": 1}'])
def test_a_column_that_holds_something_else_is_refused(text: str) -> None:
    with pytest.raises(BadRowError):
        SamplingRecord.decoded(text)
