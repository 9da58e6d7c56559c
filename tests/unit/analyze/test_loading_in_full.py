"""What is said of loading in full: who loads, its parts, what workers save, and the line to change."""

from __future__ import annotations

from typing import Any

import pytest
from drawn_findings import BY_NAME, NODE, Case, Limit, alone, from_limit_on, in_full, repeated
from msgspec.structs import replace

from stepscope.analyze import RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import StagePlace
from stepscope.testing import drawn_trace

JAX: dict[str, Any] = {"framework": "jax"}

LOADING = """
    main | 10 800 | enumerate(DataLoader)#_{kind}DataLoaderIter.__next__
    main | 20 420 | PIL/Image.py(3000): open
    main | 430 630 | torch/utils/data/_utils/collate.py(100): default_collate
    main | 440 540 | torchvision/transforms/functional.py(300): resize
    main | 640 {end} | tokenizers/tokenize.py(3): tokenize
    main | 720 750 | h5py/files.py(3): read
    main | 810 990 | aten::mm
"""


def loading(kind: str = "MultiProcessing", end: float = 700, us: float = 1000) -> str:
    return repeated(LOADING.format(kind=kind, end=end), us)


def waiting(us: float) -> str:
    return repeated(
        f"main | 10 {10 + us} | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__\n"
        "main | 810 990 | aten::mm"
    )


def loader(cores: int = 2, workers: int = 0, in_loop: bool = False, **facts: Any) -> dict[str, Any]:
    """A capture with the loaders of a run, and the line that creates the only one."""
    call = "DataLoader(data, batch_size=16)"
    created = {"what": "loader", "class": "DataLoader", "file": "train.py", "line": 1, "in_loop": in_loop}
    capture = {
        "cpus_usable": cores,
        "cpu_count": cores,
        "loaders": [{"workers": workers}, {"workers": None}],
        "created": [created | {"call": call, "source": f"loader = {call}"}],
    }
    return {"capture": capture | facts}


def alone_loading(us: float = 9000, more: str = "", length: float = 10_000) -> str:
    """Steps whose loop loads its batches itself."""
    return repeated(
        f"""
        main | 10 {10 + us} | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main | 9100 9200 | aten::mm | seq=1
        main | 9300 9400 | {NODE} MmBackward0 | seq=1 fwd=1
        main | 9500 9600 | Optimizer.step#SGD.step
        {more}
        """,
        length,
    )


BY_WORKERS = alone_loading().replace("_SingleProcess", "_MultiProcessing")

COMPUTED = {"recorded_steps": {"parts": {"data_loading": {"cpu_ns": 20, "median_ns": 100}}}}


def later(loading_ms: float, rest_ms: float) -> dict[str, Any]:
    """A capture with the mean times of the steps after the recording."""
    times = {"data_loading": loading_ms, "rest": rest_ms}
    parts = {name: {"recurring_ns": round(ms * 1e6)} for name, ms in times.items()}
    return loader(unrecorded_steps={"count": 20, "median_ns": 50_000_000, "parts": parts})


FRAME = "main | 1 9990 | transformers/trainer.py(3): fit | cat=python"
SOME_COMPUTED = {"recorded_steps": {"parts": {"data_loading": {"cpu_ns": 30, "median_ns": 100}}}}
NOTHING_COMPUTED = {"recorded_steps": {"parts": {"data_loading": {"median_ns": 100}}}}
SEVERAL = [{"workers": None}, {"workers": 1}, {"workers": 4}]
CASES = {
    "loading that waits most": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 5.5 of 10 ms, 4.23 to 6.05
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=0.30
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(**SOME_COMPUTED),
    ),
    "loading that only waits": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 5.5 of 10 ms, 4.23 to 6.05
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=0.00
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(**NOTHING_COMPUTED),
    ),
    "loading on 1 core in transformers": Case(
        "input_bound",
        alone_loading(more=FRAME),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Workers would share 1 core with the training loop and save little.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        transformers/trainer.py:3 in fit
        """,
        metadata=loader(1),
    ),
    "loading by 2 workers in transformers": Case(
        "input_bound",
        BY_WORKERS + "\n" + FRAME,
        """
        The training loop waits 90% of the step while batches load.
        -> The workers have all of 2 cores: more help only where they wait for a disk.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 0.5, 4.5 ms,
        data_loading
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 0.5, 4.5 ms,
        data_loading transformers/trainer.py:3 in fit
        """,
        metadata=loader(workers=2),
    ),
    "loading by 1 worker in transformers": Case(
        "input_bound",
        BY_WORKERS + "\n" + FRAME,
        """
        The training loop waits 90% of the step while batches load.
        -> Raise dataloader_num_workers in TrainingArguments, and set
        dataloader_persistent_workers=True.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 0.5, 4.5 ms,
        data_loading
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 0.5, 4.5 ms,
        data_loading transformers/trainer.py:3 in fit
        """,
        metadata=loader(workers=1),
    ),
    "loading by several loaders": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> The workers have all of 4 cores: more help only where they wait for a disk.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(4, loaders=SEVERAL),
    ),
    "loading on 2 cores": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 5 of 10 ms, 3.36 to 5.5
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=1.00
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(),
    ),
    "loading on 16 cores": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 8.875 of 10 ms, 6.46 to 9
        what-if dataloader, with 8 workers
        dataloader:workers=8,computing=1.00
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=8, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(16),
    ),
    "loading on 1 core": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Workers would share 1 core with the training loop and save little.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(1),
    ),
    "loading that waits": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 5.5 of 10 ms, 4.23 to 6.05
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=0.20
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(**COMPUTED),
    ),
    "loading in a loop over epochs": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Create the DataLoader once, before the loop over epochs: else its workers start again
        in each.
        critical: 5 of 10 ms, 3.36 to 5.5
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=1.00
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(in_loop=True),
    ),
    "loading faster than from workers": Case(
        "input_bound",
        alone_loading(499, length=9700),
        """
        The training loop waits 5% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Index whole batches instead of samples: keep the data in one tensor and index that.
        warning: 0.499 of 9.7 ms, 0 to 0.499
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.499 ms, data_loading
        """,
        metadata=loader(),
    ),
    "loading slower than from workers": Case(
        "input_bound",
        alone_loading(500, length=9700),
        """
        The training loop waits 5% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        warning: 0.5 of 9.7 ms, 0 to 0.5
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=1.00
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.5 ms, data_loading
        """,
        metadata=loader(),
    ),
    "loading by 1 of 2 workers": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Load ahead in a thread, with more workers or a larger prefetch_factor.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(workers=1),
    ),
    "loading by 2 workers": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> The workers have all of 2 cores: more help only where they wait for a disk.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(workers=2),
    ),
    "loading of a stream": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Let each worker read its own part of the IterableDataset
        (torch.utils.data.get_worker_info).
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(loaders=[{"workers": 2, "iterable": True}]),
    ),
    "loading of a stream by 1 worker": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Load ahead in a thread, with more workers or a larger prefetch_factor.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(loaders=[{"workers": 1, "iterable": True}]),
    ),
    "starting workers": Case(
        "input_bound",
        repeated(
            "main | 10 800 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__\n"
            "main | 20 500 | multiprocessing/popen_fork.py(3): run"
        ),
        """
        The loop waits 79% of the step while batches load.
        Most of it is starting workers (61%).
        -> Load ahead in a thread, with more workers or a larger prefetch_factor.
        critical: 0.79 of 1 ms, 0 to 0.79
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 0.79 ms, data_loading
        """,
    ),
    "loading in JAX": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Load the next batch while the step runs, in another thread or process.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader() | JAX,
    ),
    "loading in transformers": Case(
        "input_bound",
        alone_loading(more="main | 1 9990 | transformers/trainer.py(3): fit | cat=python"),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Raise dataloader_num_workers in TrainingArguments, and set
        dataloader_persistent_workers=True.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        transformers/trainer.py:3 in fit
        """,
    ),
    "loading in keras": Case(
        "input_bound",
        alone_loading(more="main | 1 9990 | keras/src/trainer.py(3): fit | cat=python"),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Raise workers in PyDataset, with use_multiprocessing=True.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        keras/src/trainer.py:3 in fit
        """,
    ),
    "loading in timm": Case(
        "input_bound",
        alone_loading(more="main | 1 9990 | timm/data/loader.py(3): fit | cat=python"),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Raise --workers.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        timm/data/loader.py:3 in fit
        """,
    ),
    "loading after the recording": Case(
        "input_bound",
        alone_loading(100),
        """
        The training loop waits 1% of the step while batches load.
        They load in the main process (num_workers=0).
        Later steps load or wait for 60% (6 ms of 10 ms); the recorded ones load less.
        -> Index whole batches instead of samples: keep the data in one tensor and index that.
        critical: 6 of 10 ms, 0 to 6
        at most the share that the steps after the recording wait
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.1 ms, data_loading
        """,
        metadata=later(6, 4),
    ),
    "waits after the recording": Case(
        "input_bound",
        alone_loading(100).replace("_SingleProcess", "_MultiProcessing"),
        """
        The training loop waits 1% of the step while batches load.
        Later steps load or wait for 60% (6 ms of 10 ms); the recorded ones found batches that
        were ready.
        -> Load ahead in a thread, with more workers or a larger prefetch_factor.
        critical: 6 of 10 ms, 0 to 6
        at most the share that the steps after the recording wait
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 0.1 ms, data_loading
        """,
        metadata=later(6, 4),
    ),
    "more workers than cores": Case(
        "too_many_workers",
        BY_WORKERS,
        """
        3 data-loader workers share 2 CPU cores.
        -> Set num_workers to at most 2: workers without a core slow down the others and the
        training loop.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2)
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(workers=3),
    ),
    "loading": Case(
        "input_bound",
        loading(),
        """
        The loop waits 79% of the step while batches load.
        Most of it is decoding (51%), then collating (13%), augmenting (13%).
        -> Load ahead in a thread, with more workers or a larger prefetch_factor.
        critical: 0.79 of 1 ms, 0 to 0.79
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 0.79 ms, data_loading
        """,
    ),
    "loading in the main process": Case(
        "input_bound",
        loading("SingleProcess"),
        """
        The loop waits 79% of the step while batches load.
        They load in the main process (num_workers=0).
        Most of it is decoding (51%), then collating (13%), augmenting (13%).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 0.79 of 1 ms, 0 to 0.79
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.79 ms, data_loading
        """,
    ),
}

LIMITS = {
    "more workers than 2 cores": Limit(
        "too_many_workers", BY_WORKERS, repeated("main | 10 20 | aten::mm"), loader(workers=3)
    ),
    "waits of 5 % of the step": Limit("input_bound", waiting(50), waiting(49.9)),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)


@pytest.mark.parametrize(("workers", "found"), [(2, 0), (3, 1)])
def test_as_many_workers_as_cores(workers: int, found: int) -> None:
    assert len(alone("too_many_workers", BY_WORKERS, **loader(workers=workers))) == found


@pytest.mark.parametrize(
    ("us", "words"),
    [
        (237, ""),  # 30 % of loading
        (237.1, "The largest part is decoding (30%)."),
        (394.9, "The largest part is decoding (50%)."),
        (395, "Most of it is decoding (50%)."),
    ],
)
def test_the_largest_part_of_loading(us: float, words: str) -> None:
    text = repeated(
        "main | 10 800 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__\n"
        f"main | 20 {20 + us} | PIL/Image.py(3000): open\nmain | 700 739.4 | h5py/files.py(3): read"
    )
    (finding,) = alone("input_bound", text)
    assert finding.what.partition("load. ")[2] == words
    assert ("decode on the device" in finding.advice) is bool(words)


@pytest.mark.parametrize(("us", "parts"), [(39.5, "decoding"), (39.4, "")])
def test_a_part_of_5_percent_of_loading_is_named(us: float, parts: str) -> None:
    text = repeated(
        "main | 10 800 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__\n"
        f"main | 20 520 | h5py/files.py(3): read\nmain | 600 {600 + us} | PIL/Image.py(3000): open\n"
        "main | 700 790 | /me/collate/data.py(3): load"
    )
    (finding,) = alone("input_bound", text)
    others = f", then {parts} (5%)" if parts else ""
    assert finding.what.endswith(f"Most of it is reading files (63%){others}.")


@pytest.mark.parametrize(
    ("us", "after", "says"),
    [
        (4285, later(6, 4), True),  # 6 ms of waits beside 4 ms, twice as much as 4.29 ms beside 5.71 ms
        (4286, later(6, 4), False),
        (10, later(0.5, 9.5), True),  # 5 % of a step
        (10, later(0.499, 9.501), False),
    ],
)
def test_later_steps_count_where_they_wait_far_longer(us: float, after: dict[str, Any], says: bool) -> None:
    found = alone("input_bound", alone_loading(us), **after)
    assert any("Later steps load or wait" in one.what for one in found) is says


@pytest.mark.parametrize(("loading_ms", "says"), [(20, False), (20.001, True)])
def test_workers_that_start_again_explain_half_of_later_waits(loading_ms: float, says: bool) -> None:
    """Ten restarts of 100 ms in 100 steps."""
    starts = {"starts": 11, "workers": 2, "loaders": 1, "datasets": 1, "first": 11, "batches": 90}
    starts |= {"starting_ns": 440_000_000, "stopping_ns": 220_000_000, "first_ns": 462_000_000}
    run = {"ended": True, "elapsed_ns": 5_000_000_000, "steps": 100, "data_loading_ns": 0, "places": []}
    run |= {"stages_ns": {"start_up": 3_000_000_000, "training_steps": 2_000_000_000}}
    run |= {"worker_starts": starts | {"waiting_ns": 180_000_000}}
    facts = later(loading_ms, 4)
    facts["capture"] |= {"run_shares": run}
    found = alone("input_bound", BY_WORKERS.replace("9010", "110").replace("19010", "10110"), **facts)
    assert any("Later steps load or wait" in one.what for one in found) is says


def test_the_line_that_samples_saw_while_batches_loaded() -> None:
    context = RuleContext(annotate(drawn_trace(alone_loading(), **loader(1))))
    places = [
        StagePlace("data_loading", "Data.__getitem__", "/me/data.py", 7, 5.0, 0.5, 0.0, 50),
        StagePlace("data_loading", "read", "/me/data.py", 9, 12.0, 1.2, 2.0),
        StagePlace("other", "log", "/me/train.py", 9, 20.0, 2.0, 2.0),
    ]
    vars(context.measures)["summary"] = replace(context.measures.summary, places=places)
    (finding,) = apply_rules(context, [BY_NAME["input_bound"]])
    assert finding.what.endswith("Most of it is in me/data.py:9 in read.")
    assert finding.advice.endswith("Or shorten what that function does: all of loading is 90% of the step.")
    assert [(one.name, one.ms, one.count) for one in finding.evidence] == [
        ("read", 12.0, 2.0),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 9.0, 1.0),
        ("Data.__getitem__", 5.0, 1.0),
    ]


@pytest.mark.parametrize(
    ("name", "part", "advice"),
    [
        ("multiprocessing/popen_fork.py(3): run", "starting workers", "Keep the workers between epochs"),
        ("torch/data/pin.py(3): pin_memory", "pinning memory", "Pin fewer bytes"),
        ("data.py(3): my_collate", "collating", "Return whole batches from the dataset"),
        ("aten::stack", "collating", "Return whole batches from the dataset"),
        ("data.py(3): load_image", "decoding", "Store samples smaller or already decoded"),
        ("torchvision/transforms/f.py(3): run", "augmenting", "Augment whole batches on the device"),
        ("data.py(3): tokenize", "tokenizing", "Tokenize once, ahead of time"),
        ("cudaMemcpyAsync", "copying to the device", "Copy the next batch while this step runs"),
        ("<built-in method read of file>", "reading files", "Read fewer, larger files"),
    ],
)
def test_each_part_of_loading_has_its_advice(name: str, part: str, advice: str) -> None:
    category = "" if name.startswith(("aten", "cuda")) else "cat=python"
    loads = "main | 10 800 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    (finding,) = alone("input_bound", repeated(f"{loads}\nmain | 20 520 | {name} | {category}"))
    assert finding.what.endswith(f"Most of it is {part} (63%).")
    assert advice in finding.advice
