from torch.utils.data import DataLoader
MAX_GPU_BATCH_SIZE = 16
EVAL_BATCH_SIZE = 32
def get_dataloaders(accelerator, batch_size: int = 16):
    train_dataloader = DataLoader(d["train"], shuffle=True, collate_fn=c, batch_size=batch_size)
    eval_dataloader = DataLoader(d["validation"], shuffle=False, batch_size=EVAL_BATCH_SIZE)
    return train_dataloader, eval_dataloader
def training_function(config, args):
    batch_size = int(config["batch_size"])
    if batch_size > MAX_GPU_BATCH_SIZE:
        batch_size = MAX_GPU_BATCH_SIZE
    train_dataloader, eval_dataloader = get_dataloaders(accelerator, batch_size)
def main():
    config = {"lr": 2e-5, "num_epochs": 3, "seed": 42, "batch_size": 16}
    training_function(config, args)
