from torch.utils.data import DataLoader
from torchvision import datasets, transforms

train_set = datasets.CIFAR10("data", train=True, download=True, transform=transforms.ToTensor())
test_set = datasets.CIFAR10("data", train=False, transform=transforms.ToTensor())

train_loader = DataLoader(train_set, batch_size=128, shuffle=True, num_workers=4)
test_loader = DataLoader(test_set, batch_size=256, shuffle=False, num_workers=4)
