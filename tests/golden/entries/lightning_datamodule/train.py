import lightning as L
from torch.utils.data import DataLoader


class Digits(L.LightningDataModule):
    def __init__(self, folder: str = "./", batch_size: int = 36):
        super().__init__()
        self.folder = folder
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=self.batch_size)
