"""Reduce-scatter and all-gather along a ring of gloo messages, in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup


def reduce_scatter(chunks: Sequence[Tensor], group: ProcessGroup, tag: int) -> Tensor:
    """Sum each chunk over a group; a member's own chunk is complete afterwards.

    Args:
        chunks: one per member, of the same sizes in each; all are overwritten.
        group: the members.
        tag: the same for all members, and used once at a time.

    Returns:
        The chunk of this member.
    """
    count, own = len(chunks), distributed.get_rank(group)
    for turn in range(count - 1):
        sent, added = chunks[(own - turn - 1) % count], chunks[(own - turn - 2) % count]
        received = torch.empty_like(added)
        _shift(sent, received, group, tag)
        added += received
    return chunks[own]


def all_gather(chunks: Sequence[Tensor], group: ProcessGroup, tag: int) -> None:
    """Give every member each member's own chunk.

    Args:
        chunks: one per member, of the same sizes in each; a member's own is complete.
        group: the members.
        tag: the same for all members, and used once at a time.
    """
    count, own = len(chunks), distributed.get_rank(group)
    for turn in range(count - 1):
        _shift(chunks[(own - turn) % count], chunks[(own - turn - 1) % count], group, tag)


def _shift(sent: Tensor, received: Tensor, group: ProcessGroup, tag: int) -> None:
    """Send to the next member and receive from the one before.

    Receiving is announced first: gloo announces it on the connection on which it sends, and what
    is announced behind a long message waits for all of it.
    """
    count, own = distributed.get_world_size(group), distributed.get_rank(group)
    ranks = distributed.get_process_group_ranks(group)
    arrives = distributed.irecv(received, ranks[(own - 1) % count], group, tag)
    leaves = distributed.isend(sent, ranks[(own + 1) % count], group, tag)
    arrives.wait()
    leaves.wait()
