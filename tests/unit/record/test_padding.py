"""What the tensors of a batch say of its padding: generated batches whose lengths are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stepscope.record.padding import Padding

WIDTH = 64


def batch_of(seed: int, most: int = WIDTH) -> tuple[Any, Any, Padding]:
    """Rows of random lengths, the mask of their samples, and the truth."""
    made = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, most + 1, (16,), generator=made)
    behind_all = 16 * (WIDTH - int(lengths.max()))
    truth = Padding(16 * WIDTH, int((WIDTH - lengths).sum()), behind_all)
    return lengths, torch.arange(WIDTH) < lengths[:, None], truth


def tokens(mask: Any, seed: int, pad: int) -> Any:
    made = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 1000, mask.shape, generator=made)
    return torch.where(mask, words, pad)


def frames(mask: Any, seed: int, pad: float) -> Any:
    made = torch.Generator().manual_seed(seed)
    return torch.where(mask[..., None], torch.randn(*mask.shape, 12, generator=made), pad)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("most", [20, WIDTH])
def test_tokens_and_frames_with_what_tells_their_lengths(seed: int, most: int) -> None:
    lengths, mask, truth = batch_of(seed, most)
    pad = (0, 2, -100)[seed % 3]
    words, sounds = tokens(mask, seed, pad), frames(mask, seed, float(pad))
    batches = [
        {"input_ids": words, "attention_mask": mask.long(), "labels": words.clone()},
        [words, ~mask],  # a key_padding_mask
        (sounds, (torch.zeros(16), lengths)),
        {"input_ids": words.flip(1), "attention_mask": mask.flip(1).long()},  # padded on the left
        (sounds.half(), mask),
    ]
    if pad != 2:  # which is a word too
        batches.append(words)
    assert [Padding.of(one) for one in batches] == [truth] * len(batches)


def test_full_rows_have_no_padding() -> None:
    _, mask, _ = batch_of(0)
    full = torch.ones_like(mask)
    assert Padding.of({"input_ids": tokens(full, 0, 0), "attention_mask": full}) == (16 * WIDTH, 0, 0)


def images() -> Any:
    shown = torch.zeros(16, 28, 28)
    shown[:, 4:24, 4:24] = torch.rand(16, 20, 20)
    return shown


@pytest.mark.parametrize(
    "batch",
    [
        (images(), torch.arange(16) % 10),  # with rows of a background, and classes
        frames(batch_of(3)[1], 3, 0.0),  # nothing says that silence is none
        (torch.rand(16, 80) < 0.1).long(),  # flags
        torch.where(batch_of(4)[1], 1, 0),  # ones and zeros alone
        (tokens(torch.ones(16, 64) > 0, 1, 0), (torch.rand(16, 64) < 0.5).long()),  # a mask of dropped words
        torch.rand(16, 3, 32, 32),
        torch.rand(16, 64).to(torch.bfloat16),
        {"text": ["a", "b"], "n": 3},
        torch.zeros(0, 64, dtype=torch.long),
        None,
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_nothing_is_said_of_what_may_be_no_padding(batch: Any) -> None:
    assert Padding.of(batch) is None


def test_long_padding_is_compared_in_part_and_a_wrong_mask_is_none() -> None:
    mask = torch.arange(4000) < torch.full((64, 1), 1000)
    words = tokens(mask, 0, 0)
    assert Padding.of((words, mask)) == (256_000, 192_000, 192_000)
    assert Padding.of((frames(mask[:, :400], 0, 0.0), torch.full((64,), 399))) is None


def test_of_many_tensors_the_first_are_looked_at() -> None:
    _, mask, truth = batch_of(0)
    assert Padding.of([tokens(mask, 0, 0), mask, *[torch.zeros(16, 64)] * 100]) == truth
    assert Padding.of([*[torch.rand(16, 64)] * 32, tokens(mask, 0, 0), mask]) is None
