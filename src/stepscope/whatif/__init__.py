"""What would a fix buy: changes of the dependency graph, one file each, and their prediction."""

from __future__ import annotations

from stepscope.whatif.amp import amp
from stepscope.whatif.bandwidth import bandwidth
from stepscope.whatif.change import Change, Request, parse_request
from stepscope.whatif.cuda_graphs import cuda_graphs
from stepscope.whatif.dataloader import dataloader
from stepscope.whatif.ddp import ddp
from stepscope.whatif.faster_gpu import faster_gpu
from stepscope.whatif.fused_optimizer import fused_optimizer
from stepscope.whatif.kernel_fusion import kernel_fusion
from stepscope.whatif.no_sync import no_sync
from stepscope.whatif.prediction import Prediction, predict
from stepscope.whatif.reconstruct_batchnorm import reconstruct_batchnorm
from stepscope.whatif.scale_tasks import scale

_LOW, _HIGH = {"estimate": "low"}, {"estimate": "high"}

# The errors are the greatest that DAYDREAM reports: 6.2 (AMP), 6.3 (FusedAdam), 6.4 (batch norm:
# a gain of 12.7 % predicted, 7 % measured), 6.5 (distributed training, most configurations).
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
        ),
        Change(
            fused_optimizer,
            ("the fused kernel takes as long as the kernels it replaces, and one launch",),
            error=0.13,
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
        Change(dataloader, ("batches are ready in time, and loading them slows nothing else",)),
        Change(
            no_sync,
            ("nothing that the CPU then does needs what it waited for",),
        ),
        Change(
            bandwidth,
            (
                "collectives are bound by bandwidth for all of their time: they neither wait for "
                "other ranks nor pay latency",
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
        ),
        Change(scale, (), ranked=False),
    )
}

__all__ = ["CHANGES", "Change", "Prediction", "Request", "parse_request", "predict"]
