class Trainer:
    def __init__(self, model, batch_size=32, lr=0.1):
        self.model = model
        self.batch_size = batch_size
        self.lr = lr

    def loader(self):
        return DataLoader(self.data, batch_size=self.batch_size)


trainer = Trainer(Net(), batch_size=50)
trainer.fit(epochs=50)
