"""`checkpoint_in_loop`: the training loop waits while a checkpoint is saved."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.analyze.rule_context import RuleContext, finding_of_part, share_of_run
from stepscope.base.numbers import rounded

EXPLAINS = ("host", "synchronization")
_NAMES = (
    r"(?i)(?<![a-z])_?save_(checkpoint|pretrained|(model|state(_dict)?)(?![a-z_]))|^torch\.save"
    r"|^stepscope\.checkpointing: "
)
_OF_LIBRARIES = r"torch/serialization\.py\(\d+\): _?save$|safetensors[^:]*: save_file"
WHAT = "Saving checkpoints, while training waits, takes"
ADVICE = (
    "Save less often, and in the background. Copy the state to pinned memory and write it in "
    "another thread (torch.distributed.checkpoint.async_save)."
)
JAX = (
    "Save less often, and in the background. There orbax.checkpoint.AsyncCheckpointer copies the state "
    "to the host and writes it in another thread."
)
LIBRARIES = {
    "transformers": "Raise save_steps in TrainingArguments, or set save_only_model=True.",
    "lightning": "Raise every_n_train_steps of ModelCheckpoint, or use AsyncCheckpointIO.",
    "accelerate": "Call accelerator.save_state less often.",
}


def checkpoint_in_loop(context: RuleContext) -> Iterator[Finding]:
    """Checkpoints that are saved while training waits, in the run or in the recorded steps.

    Silent below 5 % of the run, or of the recorded time where the run is unknown, and if no
    function or range has such a name.
    """
    advice = context.advice(ADVICE, jax=JAX, **LIBRARIES)
    if share_of_run(context, "checkpointing"):  # the whole run tells more than its recorded steps
        yield from finding_of_part(context, "checkpointing", WHAT, advice, LEAST_SHARE)
        return
    rows = context.search.find_functions(_NAMES, _OF_LIBRARIES)
    spent = context.measures.longer_side_ms(rows)
    if not len(rows) or context.measures.is_small(spent):
        return
    yield context.finding(
        f"Saving a checkpoint takes {rounded(spent)} ms per step, while training "
        f"waits.{context.main_place(rows)}",
        advice,
        rows,
        context.gains.without(rows, spent, "at most this time"),
        recurs=False,
    )
