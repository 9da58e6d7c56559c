from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def train(
    data: str,
    batch_size: Annotated[int, typer.Option(help="per GPU")] = 96,
    epochs: int = typer.Option(96, help="passes over the data"),
) -> None:
    loader = torch.utils.data.DataLoader(load(data), batch_size, shuffle=True)
