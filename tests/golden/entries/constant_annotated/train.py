from typing import Final

batch_size: Final[int] = 1_024
block_size: Final[int] = 256


def get_batch(split: str):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,))
    return torch.stack([data[i : i + block_size] for i in ix])
