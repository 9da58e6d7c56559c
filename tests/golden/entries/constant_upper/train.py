import torch
from torch.utils.data import DataLoader

LEARNING_RATE = 3e-4
BATCH_SIZE = 32  # 64 runs out of memory on the 3060
EPOCHS = 32

loader = DataLoader(Corpus(), batch_size=BATCH_SIZE, drop_last=True)
eval_loader = DataLoader(Corpus("valid"), batch_size=2 * BATCH_SIZE)
print(f"{BATCH_SIZE=} {EPOCHS=}")
