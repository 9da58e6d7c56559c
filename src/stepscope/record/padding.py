"""How much of a batch is padding: positions behind the ends of its samples that all hold one value.

That one value fills the ends of rows is no proof, as of images. It is padding where the batch also
has a mask or the lengths that say so, or where tokens have that value nowhere else.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch

np: Any = sys.modules.get("numpy")  # torch imports it where it can
_FEWEST = 8  # positions, chosen: rows of fewer are no sequences
_MOST = 1 << 20  # numbers of a tensor of tokens, chosen: a few ms to look at
_TRIED = 512  # positions, chosen: of more padding some are compared
_WORDS = 10  # chosen: tokens have at least so many values, classes and flags fewer
_DEEPEST = 3  # containers in a batch, chosen
_WIDEST = 32  # tensors of a batch, and parts of a container, that are looked at; chosen


class Padding(NamedTuple):
    """Positions of the samples of a batch."""

    positions: int
    padded: int  # of them padding
    behind_all: int  # of them behind the end of the longest sample

    @classmethod
    def of(cls, batch: Any) -> "Padding | None":
        """That of a batch's longest sequences; None where it is not known, as on a device."""
        arrays = list(islice(_arrays(batch), _WIDEST)) if np else []
        sequences = [one for one in arrays if one.ndim in (2, 3) and one.shape[1] >= _FEWEST < one.size]
        for sequence in sorted(sequences, key=lambda one: -one.shape[1]):
            for lengths in _said_lengths(sequence, arrays):
                if _fits(sequence, lengths) or _fits(sequence[:, ::-1], lengths):
                    left = sequence.shape[1] - lengths
                    sums = len(lengths) * sequence.shape[1], left.sum(), len(lengths) * left.min()
                    return cls(*map(int, sums))
        return None


def _arrays(batch: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors of a batch that can be read here without a copy."""
    if type(batch) is torch.Tensor:
        if batch.device.type == "cpu" and batch.layout == torch.strided and batch.dtype != torch.bfloat16:
            yield batch.detach().numpy()
    elif isinstance(batch, Mapping | list | tuple) and depth < _DEEPEST:
        for part in islice(batch.values() if isinstance(batch, Mapping) else batch, _WIDEST):
            yield from _arrays(part, depth + 1)


def _said_lengths(sequence: Any, arrays: list[Any]) -> Iterator[Any]:
    """What may be the lengths of a sequence's rows: of a mask, as given, or of tokens."""
    count, width = sequence.shape[:2]
    for other in arrays:
        if other.dtype.kind not in "biu" or other is sequence:
            continue
        if other.shape == (count, width) and (other.dtype.kind == "b" or other.max() <= 1):
            yield (other != 0).sum(1)
            yield (other == 0).sum(1)  # such as a key_padding_mask
        elif other.shape == (count,) and count and other.min() > 0 and other.max() <= width:
            yield other.astype(np.int64)
    if sequence.ndim == 2 and sequence.dtype.kind in "iu" and sequence.size <= _MOST:
        yield from _lengths_of_tokens(sequence)
        yield from _lengths_of_tokens(sequence[:, ::-1])


def _lengths_of_tokens(tokens: Any) -> Iterator[Any]:
    """Where the value that most rows end with comes last, several times in a row, and never before."""
    values, counts = np.unique(tokens[:, -1], return_counts=True)
    words = tokens != values[counts.argmax()]
    lengths, padded = words.sum(1), tokens.shape[1] - words.sum(1)
    is_last = (words == (np.arange(tokens.shape[1]) < lengths[:, None])).all()
    if is_last and padded.sum() >= 2 * (padded > 0).sum() > 0 and len(np.unique(tokens)) >= _WORDS:
        yield lengths


def _fits(sequence: Any, lengths: Any) -> bool:
    """Whether one value fills all behind these lengths, and does not end the samples themselves."""
    behind = np.arange(sequence.shape[1]) >= lengths[:, None]
    rows, columns = np.nonzero(behind)
    if not len(rows) or not lengths.min():
        return not len(rows)
    step = -(-len(rows) // _TRIED)
    values = sequence[rows[::step], columns[::step]].reshape(len(rows[::step]), -1)
    ends = sequence[np.arange(len(lengths)), lengths - 1].reshape(len(lengths), -1)
    return bool((values == values[0, 0]).all() and not (ends == values[0, 0]).all(1).any())
