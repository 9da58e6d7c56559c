import argparse

import yaml
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
config = yaml.safe_load(open(parser.parse_args().config))
train_loader = DataLoader(build(config), batch_size=config["train"]["batch_size"])
val_loader = DataLoader(build(config), batch_size=config["val"]["batch_size"])
