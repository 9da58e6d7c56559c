def get_loaders(root: str, workers: int = 8, batch_size: int = 8, *, pin: bool = True):
    train = DataLoader(Images(root, "train"), batch_size=batch_size, num_workers=workers)
    val = DataLoader(Images(root, "val"), batch_size=batch_size, num_workers=workers)
    return train, val


if __name__ == "__main__":
    train, val = get_loaders("data", workers=4)
