"""What is decided for each broken or odd trace in `edge_cases/malformed`.

Each entry gives the file and the decision, then every event as `name start end parent` (in
microseconds; `on TRACK` where there are several), then the warnings with their counts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import IngestError
from stepscope.read import read
from stepscope.trace.trace import Trace

DECISIONS = """
bex-interaction.json
    # of a whole slice and a begin/end pair with the same times, the first in the file is
    # around the other
    A 0 2 -
    B 0 2 A
    C 10 12 -
    D 10 12 C
    F 20 22 -
    E 20 21 F
    G 30 32 -
    H 30 31 G
    J 40 42 -
    I 41 42 J
    K 50 52 -
    L 51 52 K

end-event-with-empty-stack.json
    # an end without any open begin is counted and skipped
    alpha 0 1 -
    ! end_without_begin 1

end-non-top-of-stack.json
    # an end closes the begin of its name; what is open inside has no end and ends with it
    A 0 10 -
    B 1 10 A
    Z 10 11 -
    ! begin_without_end 1

event-reordering-name-match.json
    # simultaneous ends in the order of their begins: each closes its own; the first begun
    # is around
    alpha 0 10 -
    beta 1 2 alpha
    gamma 1 2 beta

hermes-multiple-frames.json
    # a begin/end pair written after one that it lies in: times decide, not the order in
    # the file
    [root] 0 14 -
    beta 1 2 [root]
    gamma 4 13 [root]
    beta 4 10 gamma

invalid-x-nesting.json
    # slices that overlap in part stand side by side
    alpha 0 10 -
    beta 5 15 -

matching-x.json
    # of slices with the same times, the first in the file is around the other
    alpha 0 10 -
    beta 1 2 alpha
    gamma 1 2 beta
    gamma 5 6 alpha
    beta 5 6 gamma

mismatched-args.json
    # arguments do not decide what is paired; the slice keeps those of its begin
    A 0 10 -

mismatched-name.json
    # an end of another name closes the innermost begin, since that one has no end of its
    # own
    alpha 0 10 -
    ! end_of_other_name 1

multi-thread-with-samples.json
    # slices are read; samples and their stacks are not, and the warning counts both
    mqt_js 0 0 - on mqt_js
    mqt_js 0 0 - on hermes 2
    ! unread_section 14

multiprocess.json
    # a track for each process and thread, by the best name there is
    alpha 0 1 - on p0t0
    beta 0 1 - on p0t1
    gamma 0 1 - on p1t0
    delta 0 1 - on p1t1
    epsilon 0 1 - on p2t0
    phi 0 1 - on p2t1
    zeta 0 1 - on p3 0
    eta 0 1 - on p3 1

must-retain-original-order.json
    # simultaneous marks: in the order of the file, ends before begins only where written
    # so
    A 0 3 -
    B 0 2 A
    C 0 1 B
    A 4 7 -
    B 5 7 A
    C 6 7 B
    X 7 10 -

not-enough-end-events.json
    # begins without an end last until the end of the recording
    A 0 11 -
    A 1 11 A
    A 10 11 A
    ! begin_without_end 2

only-begin-events.json
    # begins without an end last until the end of the recording; C begins at that very
    # moment and has no length, so it lies beside
    A 0 2 -
    B 1 2 A
    C 2 2 -
    ! begin_without_end 3

out-of-order-unbalanced-name.json
    # the marks of unbalanced-name.json in another order: the same result
    alpha 0 9 -
    beta 1 9 alpha
    ! begin_without_end 1
    ! end_without_begin 1

out-of-order.json
    # marks need not be in order of time
    A 0 10 -
    B 1 9 A
    C 2 8 B

simple-hermes.json
    # begin and end, with arguments
    [root] 0 14 -
    beta 1 13 [root]

simple-object.json
    # a slice without a name has an empty one; for `tdur` see simple.json
    alpha 0 14 -
    beta 1 13 alpha
    '' 7 11 beta
    ! thread_duration 1

simple-partial-trailing-comma.json
    # nor need its last event be the last: a comma may follow
    alpha 0 14 -
    beta 1 13 alpha
    gamma 2 7 beta
    epsilon 7 11 beta
    ! thread_duration 1

simple-partial-whitespace.json
    # blanks around it mean nothing
    alpha 0 14 -
    beta 1 13 alpha
    gamma 2 7 beta
    epsilon 7 11 beta
    ! thread_duration 1

simple-partial.json
    # a bare array need not be closed: the format says so
    alpha 0 14 -
    beta 1 13 alpha
    gamma 2 7 beta
    epsilon 7 11 beta
    ! thread_duration 1

simple-with-samples.json
    # nothing but samples: one clear line
    error the file holds no readable trace event
    error skipped parts of the file: samples (7), stackFrames (5)

simple.json
    # a slice without `dur` takes its `tdur`, and a warning says so
    alpha 0 14 -
    beta 1 13 alpha
    gamma 2 7 beta
    epsilon 7 11 beta
    ! thread_duration 1

simultaneous-anonymous-calls.json
    # simultaneous ends close inside out, simultaneous begins open outside in
    anonymous 0 5 -
    anonymous 1 3 anonymous
    function1 1 3 anonymous
    anonymous 1 3 function1
    anonymous 3 5 anonymous
    anonymous 3 5 anonymous

too-many-end-events.json
    # ends of a name that never began are skipped where the open begins have ends of
    # their own
    alpha 0 14 -
    beta 1 13 alpha
    ! end_without_begin 2

unbalanced-args.json
    # slices of one name nest; arguments do not decide which end is whose
    A 0 10 -
    A 1 9 A

unbalanced-name.json
    # crossing slices: the outer end closes both (a track is a stack), the late end is set
    # aside
    alpha 0 9 -
    beta 1 9 alpha
    ! begin_without_end 1
    ! end_without_begin 1

x-events-matching-end.json
    # slices that end together: the one that starts first is around, in whatever order
    alpha 0 20 -
    beta 1 3 alpha
    gamma 2 3 beta
    gamma 5 7 alpha
    beta 6 7 gamma
    beta 9 11 alpha
    gamma 10 11 beta
    gamma 14 16 alpha
    beta 15 16 gamma

x-events-matching-start.json
    # slices that start together: the longer is around, in whatever order
    alpha 0 20 -
    beta 1 3 alpha
    gamma 1 2 beta
    gamma 5 7 alpha
    beta 5 6 gamma
    gamma 9 11 alpha
    beta 9 10 gamma
    beta 13 15 alpha
    gamma 13 14 beta

zero-duration-events.json
    # slices without length are kept; an end written before its simultaneous begin still
    # finds it
    A 0 10 -
    B 1 1 A
    C 2 2 A
    D 3 3 A
"""


def entries() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in DECISIONS.strip().splitlines():
        if not line.startswith(" ") and line:
            lines = found[line] = []
        elif line and not line.startswith("    # "):
            lines.append(line.strip())
    return found


def outcome(path: Path) -> list[str]:
    """What reading a file gives, in the notation of `DECISIONS`."""
    try:
        trace = read(path)
    except IngestError as error:
        return [f"error {part}" for part in str(error).removeprefix(f"{path}: ").split("; ")]
    warnings = [f"! {row['code']} {row['count']}" for row in trace["warnings"].rows()]
    return [*events(trace), *warnings]


def events(trace: Trace) -> list[str]:
    names = [name or "''" for name in trace.events.text("name")]
    tracks = list(trace["tracks"].text("name"))
    lines = []
    for row in trace.events.rows():
        start, end = row["start_ns"], row["start_ns"] + row["duration_ns"]
        parent = "-" if row["parent"] is None else names[row["parent"]]
        place = f" on {tracks[row['track']]}" if len(tracks) > 1 else ""
        lines.append(f"{names[row['id']]} {start // 1000} {end // 1000} {parent}{place}")
    return lines


@pytest.mark.parametrize("name", entries())
def test_reading_follows_the_decision(traces: Path, name: str) -> None:
    assert outcome(traces / "edge_cases" / "malformed" / name) == entries()[name]


def test_every_file_is_decided(traces: Path) -> None:
    present = {path.name for path in (traces / "edge_cases" / "malformed").iterdir()}
    assert present == set(entries())
