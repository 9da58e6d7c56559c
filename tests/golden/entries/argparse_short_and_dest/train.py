import argparse
from torch.utils.data import DataLoader

p = argparse.ArgumentParser()
p.add_argument("-b", "--bsz", dest="batch_size", type=int, default=256, help="mini-batch size")
p.add_argument("-j", "--workers", default=4, type=int)
args = p.parse_args()
args.batch_size = int(args.batch_size / ngpus_per_node)
train_loader = DataLoader(train_dataset, batch_size=args.batch_size, num_workers=args.workers)
val_loader = DataLoader(val_dataset, batch_size=100)
