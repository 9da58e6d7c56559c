"""How names of events are shown."""

import pytest

from stepscope.facts.timeline.operation_labels import short_name

SHOWN = {
    "stepscope.module: layers.0": "layers.0",
    "stepscope.module: ": "model",
    "stepscope.lines: /home/me/train.py:84": "train.py:84",
    "stepscope.lines: /home/me/train.py:84|/home/me/net.py:27": "net.py:27",
    r"stepscope.lines: C:\me\train.py:84|C:\me\net.py:27": "net.py:27",
    "stepscope.optimizer: generator": "generator",
    "Optimizer.step#Adam.step": "Adam.step",
    "train.py(12): log": "log train.py",
    "aten::mm": "aten::mm",
}


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_what_recorders_write_is_shown_as_the_user_knows_it(name: str, shown: str) -> None:
    assert short_name(name) == shown
