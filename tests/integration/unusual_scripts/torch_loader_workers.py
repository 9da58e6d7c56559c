# starts: warm
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Numbers(Dataset):
    def __len__(self): return 24
    def __getitem__(self, index): return torch.full((8,), float(index)), torch.initial_seed() * 0 + get_worker_info().id
if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2 if method == "fork" else 1, shuffle=True, multiprocessing_context=method, persistent_workers=method == "fork")
        for data, worker in loader:
            optimizer.zero_grad()
            loss = model(data).mean()
            loss.backward()
            optimizer.step()
            print(method, sorted(data[:, 0].tolist()), worker.tolist(), round(loss.item(), 6))
