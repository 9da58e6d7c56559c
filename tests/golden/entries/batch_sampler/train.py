from torch.utils.data import BatchSampler, DataLoader, RandomSampler

sampler = BatchSampler(RandomSampler(data), batch_size=18, drop_last=True)
loader = DataLoader(data, batch_sampler=sampler)
