"""Lightning, which runs forward and backward in the closure of the optimizer."""

import logging
import tempfile
import warnings

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, time_calls, timed
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
time_calls(torch.Tensor, "backward", "backward")


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))

    def training_step(self, batch, _):
        with timed("forward"):
            return F.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        time_calls(optimizer, "zero_grad", "backward")
        time_calls(optimizer, "step", "optimizer")
        return optimizer

    def on_train_batch_end(self, *_):
        end_step()


data = TensorDataset(torch.randn(64 * STEPS, 256), torch.randint(0, 10, (64 * STEPS,)))
with tempfile.TemporaryDirectory() as folder:
    Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    ).fit(Net(), DataLoader(data, batch_size=64))
