# starts: warm
import torch
from torch.utils.data import DataLoader, Dataset
class Bad(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        if index == 5: raise ValueError("a bad sample")
        return torch.ones(2)
if __name__ == "__main__":
    try:
        for batch in DataLoader(Bad(), batch_size=2, num_workers=1):
            print(batch.shape)
    except ValueError as error:
        print(str(error).strip().splitlines()[-1])
