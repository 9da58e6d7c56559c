"""Which thread is that of the training loop."""

import numpy as np

from stepscope.base.arrays import Mask
from stepscope.facts.annotate.jax.calls import called_function, differentiated, is_compiled_call
from stepscope.facts.annotate.links.launches import on_host
from stepscope.facts.annotate.range_names import ends_update, is_step
from stepscope.facts.annotate.steps.ranges import chosen_ranges, step_ranges
from stepscope.trace.nesting import is_inside
from stepscope.trace.sets import mask_of
from stepscope.trace.trace import Trace


def main_track(trace: Trace, rank: int | None = None) -> int:
    """The CPU track of the training loop, of one rank if given: the one with marks of steps, if it
    works, else the busiest."""
    events = trace.events
    here = trace["tracks"]["rank"] == rank if rank is not None else np.ones(len(trace["tracks"]), np.bool_)
    of_rank = here[events["track"]]
    on_cpu = on_host(trace) & of_rank
    if len(rows := chosen_ranges(trace)) and of_rank[rows].any():
        return int(events["track"][rows[of_rank[rows]][0]])
    marks = events.text("name").where(is_step) & of_rank
    named = on_cpu & marks
    if not named.any() and marks.any():
        return int(events["track"][marks][0])
    works = on_cpu & events.text("category").mask("cpu_op", "runtime")
    if named.any() and _only_counts(trace, named, works):
        named &= False
    loops = trace["iterations"]["track"]
    if not named.any() and here[loops].any():
        return int(np.bincount(loops[here[loops]]).argmax())
    if not named.any():
        named = on_cpu & events.text("name").where(is_compiled_call)
        trained = differentiated(trace) if named.any() else set()
        trains = named & events.text("name").where(lambda name: called_function(name) in trained)
        named = trains if trains.any() else named
    if not named.any():
        named = on_cpu & updates(trace)  # not autograd's thread, which may do more
    if not named.any() and len(rows := step_ranges(trace)) and of_rank[rows].any():
        return int(events["track"][rows[of_rank[rows]][0]])
    if not named.any():
        named = on_cpu & events.text("category").mask("cpu_op", "python", "runtime")
        if works.any():  # a waiting thread spends all its time in Python frames
            named &= np.isin(events["track"], np.unique(events["track"][works]))
        outside = named & ~_in_autograd(trace)
        named = outside if outside.any() else named
    if not named.any():
        named = on_cpu if on_cpu.any() else of_rank
    weight = np.bincount(events["track"][named], events["self_ns"][named] + 1.0)
    return int(weight.argmax()) if len(weight) else 0


def _only_counts(trace: Trace, marks: Mask, works: Mask) -> bool:
    """Whether the threads that mark steps have nothing else, not even ranges, while others work."""
    events = trace.events
    counting = mask_of(events["track"][marks], len(trace["tracks"]))
    told = works | (events.text("category").mask("annotation") & ~events.text("name").where(is_step))
    return not told[counting[events["track"]]].any() and bool((works & ~_in_autograd(trace)).any())


def updates(trace: Trace) -> Mask:
    """Optimizers that update after backward; within it, hooks update one parameter after the other."""
    ends = trace.events.text("name").where(ends_update)
    return ends & ~_in_autograd(trace) if ends.any() else ends


def _in_autograd(trace: Trace) -> Mask:
    """Nodes of autograd's engine, and what runs inside."""
    nodes = trace.events.text("name").where(lambda name: name.startswith("autograd::engine::"))
    return is_inside(trace.events["parent"], nodes)
