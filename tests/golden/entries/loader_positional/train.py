import torch.utils.data as data_utils

dataset = make_dataset()
loader = data_utils.DataLoader(dataset, 32, True)  # (dataset, batch, shuffle)
for epoch in range(32):
    for x, y in loader:
        pass
