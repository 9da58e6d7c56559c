"""Train a small autoencoder with Lightning on random images."""

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class AutoEncoder(lightning.LightningModule):
    def __init__(self, width: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 16))
        self.decoder = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 784))

    def training_step(self, images, _):
        restored = self.decoder(self.encoder(images))
        return F.mse_loss(restored, images)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    images = torch.rand(args.steps * args.batch, 784)
    trainer.fit(AutoEncoder(args.width), DataLoader(images, batch_size=args.batch))


if __name__ == "__main__":
    main()
