"""Errors that quote a file stay one line, and send nothing to a terminal but text."""

import json
import pickle

import pytest

from stepscope.errors import IngestError
from stepscope.read import read


def test_keys_of_a_file_are_shown_without_line_ends_and_escape_sequences(tmp_path):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"two\nlines\u2028": 1, "\x1b[31mred": 2, "größe": 3}))
    with pytest.raises(IngestError) as caught:
        read(path)
    message = str(caught.value)
    for key in (r"two\nlines\u2028", r"\x1b[31mred", "größe"):
        assert key in message
    assert message.isprintable()


def test_they_travel_between_processes():
    error = pickle.loads(pickle.dumps(IngestError("line\nline")))
    assert str(error) == r"line\nline"
