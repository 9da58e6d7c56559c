"""What is said of loading in full: who loads, its parts, what workers save, and the line to change."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from drawn_findings import NODE, Case, Limit, alone, repeated, told

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


CASES = {
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
        -> Give the DataLoader more workers or a larger prefetch_factor.
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
        -> Give the DataLoader more workers or a larger prefetch_factor.
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
        -> Give the DataLoader more workers or a larger prefetch_factor.
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
        -> Give the DataLoader more workers or a larger prefetch_factor.
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
        -> Give the DataLoader more workers or a larger prefetch_factor.
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


@pytest.mark.parametrize("name", CASES)
def test_a_finding_in_full(name: str) -> None:
    rule, trace, says, metadata = CASES[name]
    assert told(alone(rule, trace, **metadata)) == textwrap.dedent(says).strip()


@pytest.mark.parametrize("name", LIMITS)
def test_a_rule_finds_from_its_limit_on(name: str) -> None:
    rule, found, silent, metadata = LIMITS[name]
    assert [len(alone(rule, trace, **metadata)) for trace in (found, silent)] == [1, 0]


@pytest.mark.parametrize(("workers", "found"), [(2, 0), (3, 1)])
def test_as_many_workers_as_cores(workers: int, found: int) -> None:
    assert len(alone("too_many_workers", BY_WORKERS, **loader(workers=workers))) == found
