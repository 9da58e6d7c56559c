import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--batch_size', default='16', type=int)
parser.add_argument('--image_size', default='16', type=int)
opt = parser.parse_args()
loader = DataLoader(images, batch_size=opt.batch_size, shuffle=True)
