"""An entry file as it is to run: which framework may be imported before it asks."""

from pathlib import Path

import pytest

from stepscope.models.batch_size.entry import open_entry


@pytest.mark.parametrize(
    ("imports", "framework"),
    [
        ("import torch", "torch"),
        ("import jax", "jax"),
        ("import flax.linen as nn", "jax"),
        ("import jax, torch\nfrom torch import nn", "torch"),
        ("from model import train", "torch"),
        ('import os\nos.environ["XLA_FLAGS"] = ""\nimport jax', ""),
        ('import os\nos.environ["OMP_NUM_THREADS"] = "1"\nimport torch', ""),
    ],
)
def test_a_framework_is_imported_ahead_where_nothing_before_it_matters(
    tmp_path: Path, imports: str, framework: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{imports}\nbatch_size = 8\n")
    assert open_entry(script).preload == framework


OPTION = """
parser.add_argument("-b", "--batch-size", "--bs", type=int, default=32)
parser.add_argument("--batches", type=int, default=5)
loader = DataLoader(data, batch_size=parser.parse_args().batch_size)
"""
FIELD = "class Settings:\n    batch_size: int = 32\n"


@pytest.mark.parametrize(
    ("text", "given", "batch", "changed"),
    [
        (OPTION, "", 32, "--batch-size 8"),
        (OPTION, "--batch-size 64", 64, "--batch-size 8"),
        (OPTION, "-b 64 --lr 1", 64, "-b 8 --lr 1"),
        (OPTION, "-b64", 64, "-b8"),
        (OPTION, "--bs=64", 64, "--bs=8"),
        (OPTION, "--batch-s 64", 64, "--batch-s 8"),
        (OPTION, "--bs 48 -b 64", 64, "--bs 48 -b 8"),
        (OPTION, "--batches 64", 32, "--batches 64 --batch-size 8"),
        (OPTION, "--batch 64", 32, "--batch 64 --batch-size 8"),  # which argparse refuses
        # What the file does not define, as with HfArgumentParser, tyro, Hydra and nanoGPT.
        (FIELD, "", 32, ""),
        (FIELD, "--batch_size 64", 64, "--batch_size 8"),
        (FIELD, "--train.batch-size=64", 64, "--train.batch-size=8"),
        (FIELD, "+train.batch_size=64", 64, "+train.batch_size=8"),
        (FIELD, "--eval_batch_size 64", 32, "--eval_batch_size 64"),
        (FIELD, "--eval.batch_size 64", 32, "--eval.batch_size 64"),
        (FIELD, "batch_size 64", 32, "batch_size 64"),
        ("batch_size = 32\n", "--batch_size=64", 64, "--batch_size=8"),
    ],
)
def test_the_command_line_says_the_batch_size_in_many_ways(
    tmp_path: Path, text: str, given: str, batch: int, changed: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    entry = open_entry(script, given.split())
    assert entry.batch == batch
    request = entry.request(8)
    assert " ".join(request.arguments) == changed
    assert bool(request.edits) == (entry.site.option is None)  # an option, or the text
    assert not entry.request(batch).edits
