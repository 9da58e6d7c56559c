def loader_for(split, bs):
    return DataLoader(Images(split), batch_size=bs, shuffle=split == "train")


def main():
    size = 4 * 8
    training = loader_for("train", size)
    fit(training, epochs=32)


main()
