if torch.cuda.is_available():
    batch_size = 64
else:
    batch_size = 4
loader = DataLoader(data, batch_size=batch_size)
