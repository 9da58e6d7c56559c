import os

loader = DataLoader(data, batch_size=int(os.environ.get("BATCH_SIZE", "28")))
epochs = int(os.environ.get("EPOCHS", "28"))
