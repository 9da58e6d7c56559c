source = DataLoader(photos, batch_size=4)
target = DataLoader(paintings, batch_size=8)
for a, b in zip(source, target):
    step(a, b)
