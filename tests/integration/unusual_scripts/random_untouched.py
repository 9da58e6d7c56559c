import random, sys
random.seed(5)
before = random.getstate()
import torch
print(random.getstate() == before, random.random())
torch.manual_seed(1)
print(torch.rand(2).tolist(), torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())
