"""What would a fix buy: changes of the dependency graph, one file each, and their prediction."""

from __future__ import annotations

from stepscope.whatif import fsdp_on_cpu, zero_in_torch
from stepscope.whatif.amp import amp
from stepscope.whatif.amp_on_cpu import assumed_of_autocast
from stepscope.whatif.bandwidth import bandwidth
from stepscope.whatif.blueconnect import blueconnect
from stepscope.whatif.change import Change, Request, parse_request
from stepscope.whatif.checkpoint import checkpoint
from stepscope.whatif.compress import compress
from stepscope.whatif.cuda_graphs import cuda_graphs
from stepscope.whatif.dataloader import dataloader
from stepscope.whatif.ddp import ddp
from stepscope.whatif.dgc import dgc
from stepscope.whatif.faster_gpu import faster_gpu
from stepscope.whatif.fsdp import fsdp
from stepscope.whatif.fused_on_cpu import assumed_of_fusing
from stepscope.whatif.fused_optimizer import fused_optimizer
from stepscope.whatif.gist import gist
from stepscope.whatif.kernel_fusion import kernel_fusion
from stepscope.whatif.metaflow import metaflow
from stepscope.whatif.no_straggler import no_straggler
from stepscope.whatif.no_sync import no_sync
from stepscope.whatif.p3 import p3
from stepscope.whatif.prediction import Prediction, predict
from stepscope.whatif.reconstruct_batchnorm import reconstruct_batchnorm
from stepscope.whatif.scale_tasks import scale
from stepscope.whatif.shared_cores import shared_cores
from stepscope.whatif.vdnn import vdnn
from stepscope.whatif.zero import zero

_LOW, _HIGH = {"estimate": "low"}, {"estimate": "high"}

_SHARDS = (
    "a ring for each all-gather and reduce-scatter, links that are free, workers ready together",
    "a worker's share of the weight update takes the n-th part of its time, and as many launches",
    "copies into and out of shards take no time, and collectives slow nothing down",
)

# The errors are the greatest that DAYDREAM reports: 6.2 (AMP), 6.3 (FusedAdam), 6.4 (batch norm:
# a gain of 12.7 % predicted, 7 % measured), 6.5 (distributed training, most configurations),
# 6.6 (P3: 16.2 %). Those of checkpoint and metaflow are our own, on a CPU (docs/accuracy.md): how
# long the same product takes is up to where a process's memory happens to lie.
CHANGES: dict[str, Change] = {
    change.name: change
    for change in (
        Change(
            amp,
            (
                "16-bit kernels gain what others measured or data sheets say for this device",
                "casts cost nothing; the optimizer stays in 32 bits",
            ),
            _LOW,
            _HIGH,
            error=0.13,
            on_cpu=assumed_of_autocast,
        ),
        Change(
            fused_optimizer,
            ("the fused kernel takes as long as the kernels it replaces, and one launch",),
            error=0.13,
            on_cpu=assumed_of_fusing,
            one_rank=True,
        ),
        Change(
            kernel_fusion,
            (
                "elementwise kernels that follow each other depend on nothing else",
                "a fused kernel takes as long as the longest it replaces; operators cost the CPU "
                "what they did, but for the launches",
            ),
            _LOW,
            _HIGH,
        ),
        Change(
            reconstruct_batchnorm,
            ("batch normalization moves half the bytes; activations cost nothing in convolutions",),
            error=0.06,
        ),
        Change(
            cuda_graphs,
            ("the step's shapes and control flow are fixed; a replay costs the CPU nothing",),
        ),
        Change(
            dataloader,
            (
                "batches are ready in time, and loading them slows nothing else; with a number of "
                "workers, they share the cores with the training loop",
            ),
            high={"computing": 0.0},
        ),
        Change(
            no_sync,
            ("nothing that the CPU then does needs what it waited for",),
        ),
        Change(
            no_straggler,
            ("slower ranks are so throughout, on the device and on the CPU",),
        ),
        Change(
            bandwidth,
            (
                "collectives are bound by bandwidth and pay no latency; of one rank alone, the "
                "time in which it waits for others shrinks too",
            ),
            error=0.10,
        ),
        Change(
            faster_gpu,
            (
                "kernels gain what the peak rates of both devices say; the CPU stays as it is",
                "copies and collectives take as long as they did",
            ),
            _LOW,
        ),
        Change(
            ddp,
            (
                "buckets as torch.distributed forms them after the first step, links that are "
                "free, and workers that are ready at the same time",
                "collectives slow nothing down; copying to buckets costs the CPU what its "
                "elementwise operators take for as many bytes, and devices nothing",
            ),
            error=0.10,
            ranked=False,
            one_rank=True,
        ),
        Change(
            p3,
            (
                "workers are servers too, ready at the same time; servers add without taking time",
                "the last step's slices are back before it ends: with one step alone all of them",
            ),
            error=0.162,
            ranked=False,
            one_rank=True,
        ),
        Change(
            blueconnect,
            ("levels of the network do not share links; nothing is lost between phases",),
            ranked=False,
            one_rank=True,
        ),
        Change(
            dgc,
            (
                "all-reduces are bound by bandwidth and take as much less as they send",
                "12 passes over the gradient compress and one unpacks it, beside what computes",
            ),
        ),
        Change(
            compress,
            (
                "all-reduces are bound by bandwidth, and adding in 16 bits is no slower",
                "casts beside what computes, as fast as this step's elementwise work moves bytes; "
                "on a CPU as calibrated",
            ),
            error=0.10,
        ),
        Change(
            zero,
            _SHARDS,
            error=0.10,
            on_cpu=lambda graph: zero_in_torch.ASSUMED,
            ranked=False,
            one_rank=True,
        ),
        Change(
            fsdp,
            _SHARDS,
            error=0.10,
            on_cpu=lambda graph: fsdp_on_cpu.ASSUMED,
            ranked=False,
            one_rank=True,
        ),
        Change(
            checkpoint,
            (
                "forward takes as long the second time, launches included; all of it is repeated",
                "the memory that this frees is not used for anything",
            ),
            error=0.07,
            ranked=False,
        ),
        Change(
            vdnn,
            (
                "copies slow no kernel down and are given memory at once",
                "the memory that this frees is not used for anything",
            ),
            ranked=False,
            one_rank=True,
        ),
        Change(
            gist,
            (
                "encoding and decoding move bytes as fast as this step's elementwise kernels",
                "the memory that this frees is not used for anything",
            ),
            ranked=False,
            one_rank=True,
        ),
        Change(
            metaflow,
            (
                "merged products neither lose nor gain by their larger shape; what they saved of "
                "additions of gradients goes into putting gradients together",
                "operators cost the CPU what they did, but for the launches",
            ),
            error=0.07,
            ranked=False,
        ),
        Change(
            shared_cores,
            (
                "computing is divided evenly among the cores, and would go on as many as it has "
                "threads; collectives take the CPU time that they took alone",
            ),
            ranked=False,
        ),
        Change(scale, (), ranked=False),
    )
}

__all__ = ["CHANGES", "Change", "Prediction", "Request", "parse_request", "predict"]
