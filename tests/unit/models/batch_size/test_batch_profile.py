"""What follows from the models: predictions both ways, suggestions, JSON."""

from __future__ import annotations

import pytest

from stepscope.errors import BatchError
from stepscope.facts.roofline.rates import device_memory_gib, find_capacity
from stepscope.models.batch_size.entry import given_option, with_option
from stepscope.models.batch_size.entry_profile import Profile, make_profile, suggestions
from stepscope.models.batch_size.measurement import BatchPoint
from stepscope.models.batch_size.resolve_number import is_batch_size, is_evaluation


def profile(a: float = 2.0, b: float = 20.0, c: int = 1000, d: int = 50_000) -> Profile:
    points = [BatchPoint(x, a * x + b, c * x + d, 0.0, 5) for x in (8, 12, 16)]
    held = BatchPoint(20, a * 20 + b, c * 20 + d, 0.0, 5, held_back=True)
    return make_profile([*points, held])


def test_the_limit_is_one_over_a() -> None:
    assert profile().max_throughput == pytest.approx(500)


def test_predictions_on_a_line_are_exact() -> None:
    found = profile().predict(64)
    assert found["throughput"] == pytest.approx(1e3 * 64 / 148)
    assert found["bytes"] == 114_000
    assert found["throughput_range"] == pytest.approx([found["throughput"]] * 2)
    assert found["bytes_range"] == [114_000, 114_000]


def test_the_point_held_back_tells_the_error() -> None:
    points = [BatchPoint(x, 10.0 * x, 100 * x) for x in (1, 2, 3)]
    off = make_profile([*points, BatchPoint(4, 50.0, 400, held_back=True)])
    assert off.fit_error == pytest.approx(0.2)
    assert profile().fit_error == pytest.approx(0)


@pytest.mark.parametrize(
    ("samples", "kept"),
    [
        ({8: 8, 16: 16, 32: 32, 48: 48}, [8, 16, 32, 48]),
        ({8: 8, 16: 16, 32: 20, 48: 20}, [8, 16]),  # a data set of 20 samples
        ({8: 32, 16: 64, 32: 128, 48: 140}, [8, 16, 32]),  # of 140, four batches a step
        ({8: 64, 16: 64, 32: 64, 48: 48}, [8, 16, 32, 48]),  # accumulated to the same batch
        ({8: None, 16: None, 32: None, 48: None}, [8, 16, 32, 48]),
    ],
)
def test_batch_sizes_for_which_the_data_has_too_few_samples_are_left_out(
    samples: dict[int, float | None], kept: list[int]
) -> None:
    made = {batch: count or batch for batch, count in samples.items()}
    points = [BatchPoint(x, 10.0 + made[x], 100 * int(made[x]), samples=samples[x]) for x in samples]
    found = make_profile(points)
    assert [point.batch for point in found.points] == kept
    said = f"batch sizes beyond {kept[-1]} are left out"
    assert any(said in note for note in found.warnings) == (len(kept) < 4)
    assert found.time is not None
    if samples[8] == 8:
        assert found.time.slope == pytest.approx(1.0)


def test_from_a_throughput_to_the_batch_size_and_from_memory_to_it() -> None:
    one = profile()
    batch = one.batch_for_throughput(400)
    assert batch == 40
    assert one.batch_for_throughput(501) is None
    assert one.batch_for_bytes(114_000) == 64
    assert one.batch_for_bytes(113_999) == 63
    assert one.batch_for_bytes(50_999) is None


def test_the_limit_is_at_a_smaller_size_where_large_ones_are_slower() -> None:
    rates = {4: 10.0, 8: 10.0, 16: 6.0, 32: 6.0, 48: 6.0, 64: 8.0}  # ms a sample: a cache ends
    one = make_profile([BatchPoint(x, x * ms, 100 * x) for x, ms in rates.items()])
    assert one.max_throughput == pytest.approx(1e3 / 6)
    assert one.suggestion() == 14  # on the way from 8 to 16
    assert one.batch_for_throughput(1e3 / 6) == 16
    assert one.batch_for_throughput(1e3 / 5.9) is None


def test_no_limit_is_below_what_was_measured() -> None:
    """On a machine that does other work beside, a line may rise too steeply."""
    one = make_profile([BatchPoint(x, ms, 100 * x) for x, ms in ((4, 10.0), (8, 20.0), (12, 90.0))])
    assert one.time is not None
    assert 1e3 / one.time.slope < 400
    assert one.max_throughput == pytest.approx(400)


def test_the_suggestion_gives_nine_tenths_of_the_limit_if_memory_allows() -> None:
    assert profile(b=4.0).suggestion() == 18
    assert profile().suggestion(capacity=80_000) == 30


def test_nothing_is_suggested_far_beyond_what_was_measured() -> None:
    assert profile().suggestion() is None  # 90, where 20 was the largest
    assert [profile().trusts(batch) for batch in (3, 4, 40, 41)] == [False, True, True, False]


def test_nothing_is_suggested_where_the_held_back_point_was_mispredicted() -> None:
    points = [BatchPoint(x, 10.0 * x + 20, 100 * x) for x in (8, 12, 16)]
    off = make_profile([*points, BatchPoint(20, 1000.0, 2000, held_back=True)])
    assert off.suggestion() is None
    assert suggestions(off, 8) == []
    assert any("no batch size is suggested" in warning for warning in off.warnings)


def test_fitting_a_device_leaves_room_for_its_context() -> None:
    capacity = find_capacity("24GB")
    assert capacity.bytes - capacity.usable_bytes == 700_000_000


def test_a_line_that_does_not_hold_is_said() -> None:
    points = [BatchPoint(x, ms, 100 * x) for x, ms in ((1, 10.0), (2, 30.0), (3, 31.0))]
    assert any("deviates from its line" in words for words in make_profile(points).warnings)


def test_run_time_that_does_not_grow_has_no_limit() -> None:
    flat = make_profile([BatchPoint(x, 10.0, 100 * x) for x in (1, 2, 3)])
    assert flat.max_throughput is None
    assert flat.suggestion() is None
    assert any("does not grow" in words for words in flat.warnings)
    assert flat.predict(6)["throughput"] == pytest.approx(600)


def test_one_point_predicts_nothing() -> None:
    alone = make_profile([BatchPoint(1, 10.0, 100)])
    assert alone.to_json([2])["predictions"] == [{"batch": 2, "extrapolated": True}]
    assert alone.to_json()["run_time"] is None


def test_json_has_what_scripts_read() -> None:
    facts = profile().to_json(at=[64])
    assert facts["run_time"] == pytest.approx({"a_ms": 2, "b_ms": 20})
    assert facts["memory"] == pytest.approx({"c_bytes": 1000, "d_bytes": 50_000})
    assert {"batch", "ms", "bytes"} <= facts["points"][0].keys()
    wanted = {"batch", "throughput", "throughput_range", "bytes", "bytes_range"}
    assert wanted <= facts["predictions"][0].keys()
    assert facts["warnings"] == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * 10**9),
        ("24GiB", 24 * 2**30),
        ("0.5 g", 5 * 10**8),
        ("RTX 4090", 24 * 2**30),
        ("NVIDIA A100-SXM4-80GB", 80 * 2**30),
        ("a100", 40 * 2**30),
        ("3080 Ti", 12 * 2**30),
        ("NVIDIA GeForce RTX 3080Ti", 12 * 2**30),
        ("NVIDIA RTX A4000", 16 * 2**30),
        ("NVIDIA GH200 480GB", 96 * 2**30),
        ("H200", 141 * 2**30),
        ("3080 TiB", 3080 * 2**40),
        ("RTX 3060 Ti", 8 * 2**30),
        ("Tesla V100S", 32 * 2**30),
    ],
)
def test_capacities(text: str, size: int) -> None:
    assert find_capacity(text).bytes == size


def test_a_size_differs_from_a_device_whose_name_is_a_number() -> None:
    assert [find_capacity(text).is_size for text in ("24GB", "3080 TiB")] == [True, True]
    assert not any(find_capacity(text).is_size for text in ("4090", "3080 Ti", "A100 80GB"))


@pytest.mark.parametrize(
    "name",
    [
        "toaster",
        "NVIDIA RTX A2000",  # is no A2
        "NVIDIA GeForce RTX 4090 Laptop GPU",  # has 16 GiB
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    ],
)
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(BatchError, match="give the capacity"):
        find_capacity(name)


def test_every_known_device_is_itself() -> None:
    for name, gib in device_memory_gib().items():
        assert find_capacity(name).bytes == gib * 2**30, name


def test_an_option_keeps_its_place_on_the_command_line() -> None:
    assert with_option(["--lr", "1", "--batch", "8", "x"], "--batch", 16) == (
        "--lr",
        "1",
        "--batch",
        "16",
        "x",
    )
    assert with_option(["--batch=8"], "--batch", 16) == ("--batch=16",)
    assert with_option(["x"], "-b", 16) == ("x", "-b", "16")
    assert with_option(["--", "x"], "-b", 16) == ("-b", "16", "--", "x")
    assert given_option(["--batch", "8", "--batch=9"], "--batch") == "9"
    assert given_option(["--batches", "8"], "--batch") is None
    assert given_option(["-b64"], "-b") == "64"
    assert with_option(["-b64", "-b=8"], "-b", 16) == ("-b16", "-b=16")


@pytest.mark.parametrize(
    "name",
    ["batch_size", "BATCH", "bs", "train_bs", "batchSize", "per_device_train_batch_size", "eval_batch_size"],
)
def test_names_of_batch_sizes(name: str) -> None:
    assert is_batch_size(name)


@pytest.mark.parametrize(
    "name", ["num_batches", "batch_norm", "batch_first", "batch_idx", "b", "log_every_batch", "size"]
)
def test_names_of_other_things(name: str) -> None:
    assert not is_batch_size(name)


def test_names_of_evaluation() -> None:
    assert is_evaluation("val_loader")
    assert is_evaluation("test_batch_size")
    assert not is_evaluation("train_val_loader")
    assert not is_evaluation("loader")
