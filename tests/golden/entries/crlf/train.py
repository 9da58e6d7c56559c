import torch
from torch.utils.data import DataLoader

BATCH_SIZE = 32
NOTES = """
batch_size = 32
"""
loader = DataLoader(data, batch_size=BATCH_SIZE)
