"""`compile`: torch.compile, which `verify` measures without a prediction."""

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.whatif.change import Application, Change

_ONLY_MEASURED = "the effect of a compiler is not predicted, only measured"


def compile(graph: Graph) -> Graph:
    """torch.compile on each model: `stepscope verify` measures it."""
    raise ChangeError(f"compile: {_ONLY_MEASURED}; run `stepscope verify compile SCRIPT`")


CHANGE = Change(
    compile,
    group="Compute",
    ranked=False,
    application=Application("`model.compile()` before each model's first call"),
    only_measured=_ONLY_MEASURED,
)
