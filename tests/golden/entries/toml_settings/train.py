import tomllib

with open("train.toml", "rb") as file:
    settings = tomllib.load(file)
loader = DataLoader(data, batch_size=settings["train"]["batch_size"])
