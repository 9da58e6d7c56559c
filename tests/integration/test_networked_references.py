"""Reference implementations of distributed changes, in processes that meet on this machine."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.networked.blueconnect import BlueConnect, level_groups
from benchmarks.networked.dgc import Dgc, compress, decompress
from benchmarks.networked.mesh import Mesh, Message, Waiting
from benchmarks.networked.p3 import P3
from benchmarks.networked.rings import all_gather, reduce_scatter

from stepscope.models.calibration.measure import largest

Work = Callable[[int], Any]
RATE = 0.5


def in_processes(count: int, work: Work, folder: Path) -> list[Any]:
    """The result of `work(rank)` in each of some forked processes of one gloo group."""
    context = multiprocessing.get_context("fork")
    queues = [context.SimpleQueue() for _ in range(count)]
    address = (folder / "address").as_uri()
    processes = [
        context.Process(target=_member, args=(rank, count, address, work, queue))
        for rank, queue in enumerate(queues)
    ]
    for process in processes:
        process.start()
    results = [queue.get() for queue in queues]
    for process in processes:
        process.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _member(rank: int, count: int, address: str, work: Work, queue: Any) -> None:
    from torch import distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=count)
        result = work(rank)
        distributed.barrier()
    except BaseException as error:
        result = error
    queue.put(result)
    os._exit(0)


def network() -> Any:
    """Layers of odd sizes, one larger than a slice."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.Tanh(), torch.nn.Linear(33, 3, bias=False))


def loss_of(model: Any, rank: int, step: int) -> Any:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(5, 7, generator=generator)).square().mean()


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def weights(model: Any) -> Any:
    return torch.cat([one.detach().flatten() for one in model.parameters()]).numpy()


def trained_with_all_reduces(rank: int, steps: int = 4) -> Any:
    """Weights after steps with plain all-reduces, which every other way is compared with."""
    from torch import distributed

    model = network()
    optimizer = sgd(model.parameters())
    for step in range(steps):
        loss_of(model, rank, step).backward()
        for one in model.parameters():
            distributed.all_reduce(one.grad)
            one.grad /= distributed.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def trained_by_priority(rank: int, steps: int = 4) -> Any:
    model = network()
    p3 = P3(model, sgd, Mesh(), slice_elements=50)
    for step in range(steps):
        loss_of(model, rank, step).backward()
    p3.finish()
    return weights(model)


def trained_in_parallel(rank: int, average: Any, steps: int = 4, momentum: float = 0.9) -> Any:
    """Weights after steps of DistributedDataParallel with a communication hook, and the model."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(network(), bucket_cap_mb=0.0005)
    model.register_comm_hook(None, lambda state, bucket: average(bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    for step in range(steps):
        loss_of(model, rank, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


# -- p3


def test_two_workers_of_p3_train_bit_for_bit_as_with_all_reduces(tmp_path: Path) -> None:
    def both(rank: int) -> Any:
        return trained_with_all_reduces(rank), trained_by_priority(rank)

    for plain, p3 in in_processes(2, both, tmp_path):
        assert (plain == p3).all()


def test_four_workers_of_p3_train_alike_up_to_the_order_of_sums(tmp_path: Path) -> None:
    def both(rank: int) -> Any:
        return trained_with_all_reduces(rank), trained_by_priority(rank)

    found = in_processes(4, both, tmp_path)
    for plain, p3 in found:
        assert p3 == pytest.approx(plain, rel=1e-5, abs=1e-6)
        assert (p3 == found[0][1]).all()  # all workers have the same weights


def test_the_smallest_number_that_waits_is_sent_first() -> None:
    waiting = Waiting()
    for kind, number in enumerate((3, 1, 2, 1)):
        waiting.put(Message(number, kind, worker=0, values=torch.zeros(1)))
    sent = [waiting.get() for _ in range(4)]
    assert [(one.number, one.kind) for one in sent if one] == [(1, 1), (1, 3), (2, 2), (3, 0)]
    waiting.close()
    assert waiting.get() is None


# -- blueconnect


def test_levels_group_neighbors_first() -> None:
    assert level_groups([4, 2], 0) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert level_groups([4, 2], 1) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert level_groups([2, 2, 2], 1) == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_a_ring_leaves_each_member_its_chunk_and_then_all_chunks(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        from torch import distributed

        values = torch.arange(10.0) * (rank + 1)
        chunks = values.tensor_split(3)
        own = reduce_scatter(chunks, distributed.group.WORLD, 0).tolist()
        all_gather(chunks, distributed.group.WORLD, 1)
        return own, values.tolist()

    found = in_processes(3, work, tmp_path)
    total = [6.0 * n for n in range(10)]
    assert [own for own, _ in found] == [total[:4], total[4:7], total[7:]]
    assert [everything for _, everything in found] == [total] * 3


@pytest.mark.parametrize("factors", [(2, 2), (4,), (1, 4)])
def test_blueconnect_trains_as_with_all_reduces(factors: tuple[int, ...], tmp_path: Path) -> None:
    def both(rank: int) -> Any:
        blue = BlueConnect(factors)
        return trained_with_all_reduces(rank), trained_in_parallel(rank, blue.average)

    for plain, hierarchical in in_processes(4, both, tmp_path):
        assert hierarchical == pytest.approx(plain, rel=1e-5, abs=1e-6)


def test_two_workers_of_blueconnect_are_bit_for_bit_as_with_all_reduces(tmp_path: Path) -> None:
    def both(rank: int) -> Any:
        blue = BlueConnect((2,))
        return trained_with_all_reduces(rank), trained_in_parallel(rank, blue.average)

    for plain, hierarchical in in_processes(2, both, tmp_path):
        assert (plain == hierarchical).all()


# -- dgc


def test_what_is_sent_and_what_stays_is_all_that_was_accumulated() -> None:
    torch.manual_seed(0)
    velocity, residual = torch.zeros(1000), torch.zeros(1000)
    expected = torch.zeros(1000)  # of a momentum that nothing masks
    gradient = torch.randn(1000)
    sent = compress(gradient, velocity, residual, ratio=0.01, momentum=0.9)
    expected += gradient
    values = decompress(sent, torch.empty(1000), world=1)
    assert int((values != 0).sum()) == 10
    assert torch.equal(values + residual, expected)
    assert not velocity[values != 0].any()  # momentum factor masking


def test_the_largest_values_go_first() -> None:
    torch.manual_seed(1)
    values = torch.randn(200_000)
    places = largest(values, 200)
    assert len(places) == 200
    kept = values.abs()[places].min()
    # Only a sample decides on the threshold, so a few larger ones may stay; here none does.
    assert int((values.abs() > kept).sum()) == 199


def test_equal_values_are_sent_in_the_number_wanted() -> None:
    assert len(largest(torch.ones(5000), 5)) == 5
    assert len(largest(torch.zeros(5000), 5)) == 5


def test_with_all_values_sent_dgc_trains_as_without_momentum(tmp_path: Path) -> None:
    """Masking then forgets every velocity, so that what is left is plain SGD."""

    def both(rank: int) -> Any:
        plain = trained_in_parallel(rank, Dgc(1.0, 0.0).average, momentum=0.0)
        masked = trained_in_parallel(rank, Dgc(1.0, 0.9).average, momentum=0.0)
        return plain, masked

    found = in_processes(2, both, tmp_path)
    for plain, masked in found:
        assert masked == pytest.approx(plain, rel=1e-6)
        assert (masked == found[0][1]).all()


def test_workers_of_dgc_keep_the_same_weights(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        return trained_in_parallel(rank, Dgc(0.1, 0.9).average, momentum=0.0)

    first, second = in_processes(2, work, tmp_path)
    assert (first == second).all()
    assert (first != weights(network())).any()


def test_a_velocity_stays_with_its_parameter_when_buckets_are_formed_again() -> None:
    dgc = Dgc(0.1)
    one, other = torch.zeros(3), torch.zeros(2, 2)
    dgc.accumulated([one, other])[1].copy_(torch.arange(7.0))
    assert dgc.accumulated([other])[1].tolist() == [3, 4, 5, 6]
    assert dgc.accumulated([one])[1].tolist() == [0, 1, 2]
