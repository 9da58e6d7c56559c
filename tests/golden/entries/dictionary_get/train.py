config = dict(lr=1e-3, batch_size=40, epochs=40)
loader = DataLoader(data, batch_size=config.get("batch_size", 8))
