from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrainConfig:
    """Hyperparameters.

    batch_size: int = 16 fits a T4.
    """

    lr: float = 1e-4
    batch_size: int = field(default=16, metadata={"help": "per device"})
    eval_batch_size: int = 16
    layers: int = 16


def main(config: TrainConfig = TrainConfig()) -> None:
    train_dl = DataLoader(train_ds(), batch_size=config.batch_size)
    eval_dl = DataLoader(eval_ds(), batch_size=config.eval_batch_size)
