"""PyTorch's operator database by `torch.compile` against eager mode, in parts; and what judges it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the frontend is PyTorch's; extra `torch`")
pytest.importorskip("expecttest", reason="PyTorch's operator database needs it")

from benchmarks import op_db  # noqa: E402

QUICK, FULL = 16, 64  # parts of the entries


def entries(part: int, parts: int) -> list[str]:
    return sorted(op_db.entries())[part::parts]


@pytest.mark.parametrize("part", range(QUICK))
def test_the_first_sample_of_an_entry_is_right(part: int) -> None:
    names = entries(part, QUICK)
    results = [op_db.run_case(op_db.case_of(name, kind, 0)) for name in names for kind in kinds(name, ())]
    assert wrong(results) == []
    assert sum(each.forward == "compiled" for each in results) >= len(names) // 2


@pytest.mark.full
@pytest.mark.parametrize("part", range(FULL))
def test_all_samples_of_an_entry_are_right_in_every_type(part: int) -> None:
    results = op_db.run(entries(part, FULL), None, op_db.DTYPES, workers=1)
    assert wrong(results) == []
    assert not any(each.left for each in op_db.sums(results))


def kinds(name: str, dtypes: tuple[str, ...]) -> list[str]:
    return op_db.types_of(op_db.entries()[name], dtypes)


def wrong(results: list[Any]) -> list[tuple[str, str, str]]:
    return [(each.name, each.dtype, each.reason) for each in results if each.state in op_db.WRONG]


# -- the judge ---------------------------------------------------------------------------------------------------------
def told(ours: float, eager: float, exact: float) -> str:
    made = [torch.tensor([each], dtype=torch.float32) for each in (ours, eager)]
    return op_db.wrong_tensor(*made, lambda: torch.tensor([exact], dtype=torch.float64))


def test_a_result_is_right_where_it_is_as_near_to_float64_as_eager_mode() -> None:
    assert told(1.0, 1.0, 1.0) == ""
    assert told(1.0, 1.25, 1.0) == "", "eager mode is the wrong one"
    assert told(1.25, 1.0, 1.0) != ""
    assert told(1.5, 1.125, 1.0) != "", "four times eager mode's error"


def test_parts_hold_every_sample_once() -> None:
    for count in (0, 1, 2, 17, 18, 500):
        found, part, left = [], 0, count
        while left or part == 0:
            chosen, left = op_db.part_of(count, part)
            found += chosen
            part += 1
        assert sorted(found) == list(range(count))


def test_what_a_file_has_is_not_run_again(tmp_path: Any) -> None:
    record = tmp_path / "results"
    first = op_db.run(["abs"], 1, ("float32", "int64"), workers=1, record=record)
    assert [(each.dtype, each.forward, each.samples) for each in first] == [
        ("float32", "compiled", 1),
        ("int64", "compiled", 1),
    ]
    written = record.read_text()
    assert op_db.run(["abs"], 1, ("float32", "int64"), workers=1, record=record) == first
    assert record.read_text() == written
