"""Callbacks that watch a training and add its times to the metrics that the framework logs.

Each is made by a function, as importing a framework takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.record.api import watch

if TYPE_CHECKING:
    import lightning
    import transformers


def _watching(base: Any, path: str | Path | None) -> Any:
    """A class of callbacks that watch from the begin of a training to its end."""

    class Watch(base):  # type: ignore[misc]
        watched = watch(path)

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            self.watched.__exit__(None, None, None)  # one that failed may not have ended
            self.watched = watch(path).__enter__()

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            self.watched.__exit__(None, None, None)

    return Watch


def watch_trainer(trainer: transformers.Trainer, path: str | Path | None = None) -> None:
    """Watch what a `transformers.Trainer` trains; its reporters get the times.

    Args:
        trainer: before `train()`.
        path: the file of the run; by default named after the script.

    Example:
        callbacks.watch_trainer(trainer)
        trainer.train()
    """
    from transformers import TrainerCallback

    class Watch(_watching(TrainerCallback, path)):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            kwargs["logs"].update(self.watched.metrics())

    # The first: those that report read the same dict afterwards.
    trainer.callback_handler.callbacks.insert(0, Watch())


def lightning_callback(path: str | Path | None = None) -> lightning.Callback:
    """Watch what a Lightning `Trainer` trains; its loggers get the times.

    Args:
        path: the file of the run; by default named after the script.

    Returns:
        A callback for `Trainer(callbacks=[…])`.

    Example:
        lightning.Trainer(callbacks=[callbacks.lightning_callback()])
    """
    from lightning import Callback

    class Watch(_watching(Callback, path)):  # type: ignore[misc]
        def on_train_start(self, *args: Any) -> None:
            self.on_train_begin()

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            every = trainer.log_every_n_steps  # 0 for never
            if every and trainer.global_step % every == 0 and (metrics := self.watched.metrics()):
                for logger in trainer.loggers:
                    logger.log_metrics(metrics, trainer.global_step)

        def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
            self.watched.__exit__(type(error), error, None)

    return Watch()


def keras_callback(path: str | Path | None = None) -> Any:
    """Watch what Keras fits; the logs of each epoch get the times.

    Args:
        path: the file of the run; by default named after the script.

    Returns:
        A callback for `model.fit(callbacks=[…])`.

    Example:
        model.fit(x, y, callbacks=[callbacks.keras_callback()])
    """
    keras: Any = import_module("keras")  # it has no types

    class Watch(_watching(keras.callbacks.Callback, path)):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if logs is not None:
                logs.update(self.watched.metrics())

    return Watch()
