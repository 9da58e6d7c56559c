hparams = {
    "lr": 2e-5,
    "batch_size": 12,    # per GPU
    "warmup": 12,
    "val": {"batch_size": 12},
}

train_loader = DataLoader(train_dataset, batch_size=hparams["batch_size"])
