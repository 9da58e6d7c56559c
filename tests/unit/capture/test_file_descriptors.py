"""A capture is written although the program has used up its file descriptors."""

import json
import subprocess
import sys

SCRIPT = """
import json, os, resource, sys
from stepscope.capture.capture_file import spare_descriptors

soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    while True:
        os.open(os.devnull, os.O_RDONLY)
except OSError:
    used_up = True
try:
    with spare_descriptors():
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    said = len(opened)
except OSError as error:
    said = error.strerror
print(json.dumps([said, resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


def with_limits(soft: int, hard: int) -> list[object]:
    """What can be opened by a process that has used up its descriptors, and its limits after."""
    command = [sys.executable, "-c", SCRIPT, str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_soft_limit_is_raised_for_as_long_as_it_takes():
    assert with_limits(40, 400) == [10, [40, 400]]


def test_the_hard_limit_stays_and_is_named():
    assert with_limits(40, 40) == ["Too many open files", [40, 40]]
