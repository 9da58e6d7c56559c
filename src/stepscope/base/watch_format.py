"""The layout of the file of a watched run, which its writer (`record.watch`) and reader share.

The file has a constant size of 20 MB, of which the disk holds what is written. A ring keeps the newest steps,
one more row the means over all. What is no number is JSON, in two slots that are written in turns, and so are
samples of the training thread's lines. A row is written before the counter that includes it, and a slot says
the CRC of its bytes: a process that is killed leaves a readable file.
"""

import struct
from pathlib import Path

from stepscope.base.input_files import open_input

MAGIC = b"stepscope watch 3\n"
SUFFIX = ".watch"
COUNTERS, COUNTERS_AT = "<2q", 32  # steps so far, and when that was written, in ns
TOTALS_AT = 128  # a row with the means over all steps
TEXT, TEXT_BYTES = "<qII", 65_536  # number, bytes and CRC-32 of JSON
TEXTS_AT = 4_096, 4_096 + TEXT_BYTES  # bytes: a page after the row of means, and the slot after that
WHOLE = ("step", "begin_ns", "wall_ns")  # its number; of the means how many steps, and the time of all
# In ms: parts of a step on the training thread, then what overlaps them.
PARTS = ("input", "backward", "optimizer", "evaluation", "checkpoint")
OF_CPU = (*PARTS, "collective", "gc", "compile", "cpu", "queued", "threads")
OF_JAX = ("input", "checkpoint", "gc", "compile", "cpu", "queued", "threads")  # what is known of its steps
OF_DEVICE = ("device_backward", "device_optimizer")  # by events in its queue; 0 where they are not known
TIMES = OF_CPU + OF_DEVICE
FIELDS = WHOLE + TIMES
ROW = f"<{len(WHOLE)}q{len(TIMES)}f"
ROW_BYTES = 8 * len(WHOLE) + 4 * len(TIMES)  # of `ROW`: 64-bit integers, 32-bit floats
STEPS_AT = TEXTS_AT[1] + TEXT_BYTES
KEPT_STEPS = 248_000  # 13 hours of steps of 200 ms; step n is in row n modulo this
SAMPLE = "<qhH"  # ns since the run began, the number of the line, and 1 if the thread slept
MOST_ASKED_STEPS = 1_000  # by `stepscope record`; chosen: the profiler keeps their events in memory
LOADER_WORKER = "loader worker"  # the role of a data loader's processes
MOST_SAMPLES, MOST_LINES_BYTES = 32_768, 65_536  # `kMostSamples` of loop_sampler.cpp; JSON of the lines
SAMPLES_BYTES = struct.calcsize(TEXT) + 4 + MOST_LINES_BYTES + MOST_SAMPLES * struct.calcsize(SAMPLE)
SAMPLES_AT = STEPS_AT + KEPT_STEPS * ROW_BYTES, STEPS_AT + KEPT_STEPS * ROW_BYTES + SAMPLES_BYTES
# Of the device, as 64-bit floats: ns since the run began, MHz, W, °C, NVML's reasons for a low clock
# as bits, and how often the allocator had to give memory back to get some. A ring; 0 where there is none.
DEVICE = ("ns", "clock", "power", "temperature", "reasons", "retries")
DEVICE_AT = SAMPLES_AT[1] + SAMPLES_BYTES
MOST_DEVICE_ROWS = 1_500  # the last that 20 MB have room for; row n is in place n modulo this
FILE_BYTES = DEVICE_AT + MOST_DEVICE_ROWS * len(DEVICE) * 8


def is_watched_run(path: str | Path) -> bool:
    """Whether a file is one of a watched run."""
    try:
        with open_input(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
