"""What to do about a full memory: findings with their gain in bytes."""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from stepscope.base.numbers import plural, size
from stepscope.models.memory.device_facts import MemoryFacts, MemoryShare

# The least shares that are worth a finding.
_PINNED_SHARE = 0.1  # of reserved memory; chosen: worth another setting of the allocator
_KIND_SHARE = 0.4  # of the peak, of one kind; chosen: so much is mostly the largest part
_ACTIVATIONS_SHARE = 2 / 3  # of a step that is otherwise healthy they are most
_LINE_SHARE = 0.2  # of the peak, of one or two tensors; chosen: worth a change of one line
_LEAST_BYTES = 1 << 20  # of what is large; chosen: less is no problem on any machine
_GROWTH_SHARE = 0.01  # of the peak; chosen: little, since it adds up from step to step
_KEEP_NOTHING = (
    "Keep no tensors from step to step: append loss.item() or loss.detach() instead of loss, and "
    "clear caches that grow."
)
_SMALLER = "Compute it in chunks, or use a smaller batch."  # nothing waits for backward
_KEEP_NO_GRAPH = (
    "Something keeps what was computed here: append loss.item() or loss.detach() instead of loss, "
    "or compute it under torch.no_grad()."
)


class MemoryFinding(msgspec.Struct, frozen=True):
    """One problem of a device's memory."""

    rule: str  # its short name
    what: str  # what fills or wastes memory
    advice: str  # what to do
    gain_bytes: int  # what that would give back at the peak, at most
    place: str = ""  # the user's line, empty where none is known


def find_problems(facts: MemoryFacts) -> list[MemoryFinding]:
    """The findings of one device, the largest gain first."""
    found = [finding for rule in _RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: -finding.gain_bytes)


def _growing(facts: MemoryFacts) -> Iterator[MemoryFinding]:
    for growth, line in zip(facts.growth, facts.growth_lines, strict=True):
        if growth.bytes >= _GROWTH_SHARE * facts.peak_bytes:
            yield MemoryFinding(
                "kept_graph" if growth.keeps_graph else "growing_memory",
                f"{size(growth.bytes)} in {plural(growth.count, 'allocation')} "
                f"{'of an autograd graph ' if growth.keeps_graph else ''}are never released; "
                f"{size(growth.bytes_per_cycle)} are added in each step.",
                _KEEP_NO_GRAPH if growth.keeps_graph else _KEEP_NOTHING,
                growth.bytes,
                line,
            )


def _fragmented(facts: MemoryFacts) -> Iterator[MemoryFinding]:
    state = facts.fragmentation
    if state is None:
        return
    if state.pinned >= _PINNED_SHARE * max(state.reserved, 1):
        yield MemoryFinding(
            "fragmentation",
            f"{size(state.pinned)} of {size(state.reserved)} reserved are free but cannot be returned, as "
            f"other blocks pin their segments; the largest free block has {size(state.largest_free)}.",
            "Pad inputs to a few fixed sizes, and allocate the largest first."
            if facts.settings.get("expandable_segments")
            else "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            state.pinned,
        )


def _activations(facts: MemoryFacts) -> Iterator[MemoryFinding]:
    held = _held(facts, "activations") - sum(growth.bytes for growth in facts.growth if growth.keeps_graph)
    module = _dominating_module(facts)
    if module:
        held, whose = module.bytes, f"Activations and temporaries of module {module.name}"
        advice = (
            f"Checkpoint it (what-if checkpoint:module={module.name}), compute it in chunks or in 16 bits"
        )
    else:
        whose, advice = "Activations", "Wrap the repeated blocks in torch.utils.checkpoint"
    if held < max(_LEAST_BYTES, 0 if module else _ACTIVATIONS_SHARE * facts.peak_bytes):
        return
    yield MemoryFinding(
        "activations",
        f"{whose} hold {size(held)} of {size(facts.peak_bytes)} at the {facts.moment}.",
        f"{advice}, or use a smaller batch and accumulate gradients." if facts.may_train else _SMALLER,
        held,
        next((share.name for share in facts.activation_lines if share.name), ""),
    )


def _dominating_module(facts: MemoryFacts) -> MemoryShare | None:
    """The module whose activations and temporaries are most of the peak, and twice any other's.

    The whole model is none: checkpointing all of it saves nothing.
    """
    modules = [share for share in facts.activation_modules if share.name]
    if not modules or modules[0].name.startswith("("):
        return None
    following = modules[1].bytes if len(modules) > 1 else 0
    return modules[0] if modules[0].bytes >= max(_KIND_SHARE * facts.peak_bytes, 2 * following) else None


def _optimizer_state(facts: MemoryFacts) -> Iterator[MemoryFinding]:
    held = _held(facts, "optimizer state")
    if held >= max(_KIND_SHARE * facts.peak_bytes, _LEAST_BYTES):
        yield MemoryFinding(
            "optimizer_state",
            f"Optimizer state holds {size(held)} of {size(facts.peak_bytes)} at the {facts.moment}.",
            "Use an optimizer with less state (Adafactor, 8-bit Adam, SGD), or shard it over the "
            "ranks (FSDP, ZeroRedundancyOptimizer).",
            held,
            facts.update_line,
        )


def _one_line(facts: MemoryFacts) -> Iterator[MemoryFinding]:
    # What training keeps, as the weights of an embedding, is there as a whole: chunks save nothing.
    computed = Counter({share.name: share.bytes for share in facts.activation_lines})
    computed.update({share.name: share.bytes for share in facts.unassigned_lines})
    top = next((one for one in facts.lines if one.name and computed[one.name] >= one.bytes), None)
    if top and top.count <= 2 and top.bytes >= max(_LINE_SHARE * facts.peak_bytes, _LEAST_BYTES):
        yield MemoryFinding(
            "one_large_tensor",
            f"One line holds {size(top.bytes)} of {size(facts.peak_bytes)} at the {facts.moment}, in "
            f"{top.count} allocation{'s' * (top.count > 1)}.",
            "Compute it in chunks, in 16 bits, or with a fused operator that does not keep it.",
            top.bytes,
            top.name,
        )


_RULES: tuple[Callable[[MemoryFacts], Iterator[MemoryFinding]], ...] = (
    _growing,
    _fragmented,
    _activations,
    _optimizer_state,
    _one_line,
)


def _held(facts: MemoryFacts, kind: str) -> int:
    return sum(share.bytes for share in facts.kinds if share.name == kind)
