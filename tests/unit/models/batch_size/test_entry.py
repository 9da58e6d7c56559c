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
