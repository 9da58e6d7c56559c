class Config:
    seed = 42
    device = "cuda"
    batch_size = 0x20
    num_batches = 0x20


cfg = Config()
loader = DataLoader(ds, batch_size=cfg.batch_size)
