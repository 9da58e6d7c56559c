import click
from torch.utils.data import DataLoader


@click.command()
@click.option("--lr", default=1e-3, show_default=True)
@click.option(
    "--batch-size", "-b",
    default=20,  # words, not sentences
    show_default=True,
)
@click.option("--eval-batch-size", default=10)
def main(lr: float, batch_size: int, eval_batch_size: int) -> None:
    train = DataLoader(corpus, batch_size=batch_size)
    valid = DataLoader(valid_corpus, batch_size=eval_batch_size)


if __name__ == "__main__":
    main()
