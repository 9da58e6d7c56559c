"""Records that a recorder lost: what it says itself, and the codes of the warnings about it.

Source: messages of Nsight Systems' table DIAGNOSTIC_EVENT, of Kineto's log in a trace, and of XLA's
`ReportNumEventsIfDropped` (cupti_collector.cc).
"""

import re

RECORDS_MISSING = "records_missing"  # the recorder's own note
WORK_MISSING = "work_missing"  # of launches in every step: busy and idle times are wrong
STEPS_LEFT_OUT = "steps_left_out"  # those whose launches lack work
GRAPHS_VARY = "graphs_vary"  # replays with less work than others, for a reason that nothing shows
TIME_LEFT_OUT = "time_left_out"  # of the recording, in which no step runs
MERGED_RANKS = "merged_ranks"  # whose launches cannot be told apart
CLOCK_APART = "device_clock_apart"  # by more than a step: its device work seems to run in another
WITHHELD = (WORK_MISSING, MERGED_RANKS, CLOCK_APART)  # busy and idle times are not known
NOTES = (
    RECORDS_MISSING,
    WORK_MISSING,
    STEPS_LEFT_OUT,
    TIME_LEFT_OUT,
    GRAPHS_VARY,
)  # what a report says first

_LOST = re.compile(
    r"\bdropp(ed|ing)|\bdrops?\b|\blost\b|\bdiscarded\b|stopped early\? = (1|true)|\btruncated\b"
    r"|not all .* (collected|recorded)|\bno (cuda|gpu|device|kernel)\b.* (collected|recorded)"
    r"|might have not been started|(fail(ed|ure)|unable|could not|cannot|can't)\b.*"
    r"(start|enabl|initiali|subscrib|collect|record|trac|profil|load)|insufficient_?privilege"
    r"|out of (buffer|memory|space)|buffer(s)? (is|are|was|were) full",
    re.IGNORECASE,
)
_OF_DEVICE = re.compile(
    r"cuda|cupti|gpu|tpu|kernel|device|\bhip|roctracer|rocprof|xpu|activit", re.IGNORECASE
)
_OF_OTHERS = re.compile(r"(?i)\bnvtx\b|os runtime|cpu sampl|sched|context switch|unified memory|gpu metrics")
_NONE_LOST = re.compile(r"\b0 [a-z ]*(dropp|lost|discard)|(dropp\w*|lost|discarded)\W+0\b", re.IGNORECASE)


def says_records_missing(note: str) -> bool:
    """Whether a recorder's note says that it lost records of device work, or recorded none."""
    about_device = _OF_DEVICE.search(note) and not _OF_OTHERS.search(note)
    return bool(about_device and _LOST.search(note) and not _NONE_LOST.search(note))
