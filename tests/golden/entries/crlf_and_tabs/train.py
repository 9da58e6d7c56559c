def make(batch_size=10):
	return DataLoader(data,
		batch_size=batch_size,
		shuffle=True)
