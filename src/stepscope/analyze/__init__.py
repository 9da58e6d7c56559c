"""What is wrong with a step, in sentences: rules, one file each, and what they find."""

from __future__ import annotations

from stepscope.analyze.analysis import apply_rules
from stepscope.analyze.finding import LEVELS, Finding, Gain, Place
from stepscope.analyze.rule import Rule, load_rules
from stepscope.analyze.rules.allocator_churn import allocator_churn
from stepscope.analyze.rules.cpu_latency import cpu_latency
from stepscope.analyze.rules.exposed_communication import exposed_communication
from stepscope.analyze.rules.forward_backward import forward_backward
from stepscope.analyze.rules.fp32_matmul import fp32_matmul
from stepscope.analyze.rules.hotspot import hotspot
from stepscope.analyze.rules.index_backward import index_backward
from stepscope.analyze.rules.input_bound import input_bound
from stepscope.analyze.rules.kernel_fusion import kernel_fusion
from stepscope.analyze.rules.layout_conversions import layout_conversions
from stepscope.analyze.rules.odd_shapes import odd_shapes
from stepscope.analyze.rules.optimizer_loop import optimizer_loop
from stepscope.analyze.rules.pageable_copies import pageable_copies
from stepscope.analyze.rules.recompilation import recompilation
from stepscope.analyze.rules.small_batch import small_batch
from stepscope.analyze.rules.stall_reasons import stall_reasons
from stepscope.analyze.rules.straggling_rank import straggling_rank
from stepscope.analyze.rules.synchronising_calls import synchronising_calls
from stepscope.analyze.rules.too_many_workers import too_many_workers
from stepscope.analyze.rules.zero_grad_memset import zero_grad_memset
from stepscope.analyze.subject import Subject, glob
from stepscope.analyze.table import with_findings

RULES: list[Rule] = [
    Rule(function)
    for function in (
        hotspot,
        kernel_fusion,
        forward_backward,
        stall_reasons,
        cpu_latency,
        input_bound,
        too_many_workers,
        synchronising_calls,
        pageable_copies,
        layout_conversions,
        index_backward,
        optimizer_loop,
        fp32_matmul,
        odd_shapes,
        small_batch,
        exposed_communication,
        straggling_rank,
        recompilation,
        zero_grad_memset,
        allocator_churn,
    )
]

__all__ = [
    "LEVELS",
    "RULES",
    "Finding",
    "Gain",
    "Place",
    "Rule",
    "Subject",
    "apply_rules",
    "glob",
    "load_rules",
    "with_findings",
]
