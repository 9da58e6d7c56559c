"""The time axis: every track where it was recorded, in tiles of several levels of detail."""

from stepscope.facts.timeline.axis.area import Area, AreaShare, DeviceShare, area_of
from stepscope.facts.timeline.axis.counters import BINS, Counter, CounterSummary
from stepscope.facts.timeline.axis.time_axis import AxisTrack, TimeAxis, TrackSlices

__all__ = [
    "BINS",
    "Area",
    "AreaShare",
    "AxisTrack",
    "Counter",
    "CounterSummary",
    "DeviceShare",
    "TimeAxis",
    "TrackSlices",
    "area_of",
]
