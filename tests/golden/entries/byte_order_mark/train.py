batch_size = 15
loader = DataLoader(data, batch_size=batch_size)
