source = DataLoader(photos, batch_size=4)
target = DataLoader(paintings, batch_size=8)
