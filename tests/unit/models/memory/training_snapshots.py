"""Snapshots of drawn training loops, with the purpose of every byte known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from model_allocator import ModelAllocator, frame

SITE = "/opt/venv/lib/python3.12/site-packages"
USER = "/home/me/project/train.py"
CPYTHON = "/usr/local/src/conda/python-3.12.3"
NATIVE_INNER = [
    frame("??", 0, "torch::unwind::unwind()"),
    frame("??", 0, "torch::CapturedTraceback::gather(bool, bool, bool)"),
    frame("memory_snapshot.cpp", 0, "torch::cuda::(anonymous namespace)::gather_with_cpp()"),
    frame("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::malloc(unsigned long)"),
    frame("??", 0, "at::_ops::addmm::call(at::Tensor const&, at::Tensor const&)"),
]
NATIVE_PYTHON = frame(f"{CPYTHON}/Objects/call.c", 240, "_PyObject_MakeTpCall")
NATIVE_OUTER = [
    frame(f"{CPYTHON}/Modules/main.c", 710, "pymain_main"),
    frame("./csu/../csu/libc-start.c", 360, "__libc_start_main_impl"),
    frame("/usr/bin/python3.12", 4224, "_start"),
]
NATIVE_BACKWARD = [
    frame("??", 0, "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>)"),
    frame("offloadstuff.c", 0, "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)"),
    frame("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)"),
    frame("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)"),
    frame("??", 0, "execute_native_thread_routine"),
    frame("./nptl/pthread_create.c", 442, "start_thread"),
]
MAIN = frame(USER, 90, "<module>")
CLOSURE = [
    frame(USER, 33, "training_step"),
    frame(f"{SITE}/lightning/pytorch/loops/optimization/closure.py", 129, "closure"),
    frame(f"{SITE}/torch/optim/adam.py", 226, "step"),
    frame(f"{SITE}/lightning/pytorch/core/optimizer.py", 154, "step"),
]
CALL = frame(f"{SITE}/torch/nn/modules/module.py", 1789, "_call_impl")


@dataclass
class Training:
    """One training loop on a drawn device.

    Attributes:
        native: with frames of C++, as by default.
        from_step: the history begins before this step; -1 before the model is made.
        states: tensors that the optimizer keeps for each parameter.
        in_closure: the forward pass runs inside of `Optimizer.step`, as with Lightning.
    """

    native: bool = True
    from_step: int = -1
    states: int = 2
    in_closure: bool = False
    sizes: tuple[int, ...] = (3 << 20, 1 << 20, 5 << 19, 1536, 3 << 20)
    bias: int = 512
    allocator: ModelAllocator = field(default_factory=ModelAllocator)

    def __post_init__(self) -> None:
        self.purpose: dict[int, str] = {}
        self.truth: Counter[str] = Counter()
        self.records = self.from_step < 0

    def alloc(self, size: int, purpose: str, frames: list[dict[str, Any]], thread: str = "main") -> int:
        """Allocate on a thread."""
        address = self.allocator.alloc(size, self.stack(frames, thread) if self.records else [])
        self.purpose[address] = purpose
        if self.records and sum(self.allocator.live.values()) == self.allocator.peak:
            self.truth = Counter()
            for place, held in self.allocator.live.items():
                self.truth[self.purpose[place]] += held
        return address

    def stack(self, frames: list[dict[str, Any]], thread: str) -> list[dict[str, Any]]:
        """The frames as PyTorch writes them."""
        if thread == "autograd":
            return [*NATIVE_INNER, *NATIVE_BACKWARD] if self.native else []
        frames = [*frames, MAIN]
        if not self.native:
            return frames
        return [*NATIVE_INNER, *[part for one in frames for part in (NATIVE_PYTHON, one)], *NATIVE_OUTER]

    def run(self, steps: int) -> dict[str, Any]:
        """Train, and snapshot at the end."""
        setup = [frame(f"{SITE}/torch/nn/modules/module.py", 1341, "convert")]
        setup += [frame(f"{SITE}/torch/nn/modules/module.py", 915, "_apply")]
        for size in (*self.sizes, self.bias):
            self.alloc(size, "weights", setup)
        states: list[int] = []
        for number in range(steps):
            if number == self.from_step:
                self.records, self.allocator.events = True, []
                self.allocator.peak = 0
            self.step(states)
        return self.allocator.snapshot()

    def step(self, states: list[int]) -> None:
        """Forward, backward, update, and gradients set to None."""
        outer = CLOSURE if self.in_closure else []
        free, alloc = self.allocator.free, self.alloc
        inputs = alloc(1 << 20, "inputs", [frame(USER, 12, "get_batch")])
        saved = []
        for layer, _ in enumerate(self.sizes):
            line = frame("/home/me/project/model.py", 40 + layer, "forward")
            saved.append(alloc(4 << 20, "activations", [line, CALL, *outer]))
            helper = frame("/home/me/project/layers.py", 7, "rotate")
            saved.append(alloc(2 << 20, "activations", [helper, line, CALL, *outer]))
        saved.append(alloc(512, "activations", [frame(USER, 20, "loss"), *outer]))
        backward = [frame(f"{SITE}/torch/autograd/__init__.py", 395, "_make_grads")]
        ones = alloc(512, "temporaries", [*backward, *outer])
        gradients, passing = [], []
        for size in reversed(self.sizes):
            passing.append(alloc(4 << 20, "temporaries", [], "autograd"))
            gradients.append(alloc(size, "gradients", [], "autograd"))
            for address in (saved.pop(), saved.pop()):
                free(address)
            passing.append(alloc(2 << 20, "temporaries", [], "autograd"))
            if ones:
                free(ones)
                ones = 0
            if len(passing) > 3:
                free(passing.pop(0))
        for address in (*passing, *saved):
            free(address)
        gradients.append(alloc(self.bias, "gradients", [], "autograd"))
        update = frame(f"{SITE}/torch/optim/adam.py", 150, "_init_group")
        if not states:
            made = [size for size in (*self.sizes, self.bias) for _ in range(self.states)]
            states += [alloc(size, "optimizer state", [update]) for size in made]
        foreach = frame(f"{SITE}/torch/optim/adam.py", 480, "_multi_tensor_adam")
        for address in [alloc(size, "temporaries", [foreach]) for size in self.sizes]:
            free(address)
        for address in (*gradients, inputs):
            free(address)
