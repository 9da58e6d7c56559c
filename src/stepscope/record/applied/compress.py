"""`compress`: gradients are all-reduced in bfloat16, by a communication hook."""

from typing import Any

from stepscope.record.applied.patches import with_arguments


class Apply:
    """Each DistributedDataParallel gets the hook, the script's own or the one added by `ddp`.

    torch's `bf16_compress_hook` does the same, but on GPUs only.
    """

    def __init__(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._models = 0
        with_arguments(DistributedDataParallel, {}, self._register)

    def evidence(self) -> dict[str, Any]:
        return {"count": self._models, "dtype": "bfloat16"}

    def _register(self, model: Any) -> None:
        model.register_comm_hook(None, lambda state, bucket: _reduce(bucket))
        self._models += 1


def _reduce(bucket: Any) -> Any:
    """A future of the bucket's mean over all processes, sent in 16 bits."""
    import torch
    from torch import distributed

    gradients = bucket.buffer()
    sent = gradients.to(torch.bfloat16).div_(distributed.get_world_size())
    work: Any = distributed.all_reduce(sent, async_op=True)
    return work.get_future().then(lambda done: gradients.copy_(done.value()[0]))
