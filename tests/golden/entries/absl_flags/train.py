from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 64, "Batch size.")
flags.DEFINE_integer("hidden", 64, "Width.")


def main(_):
    loader = DataLoader(dataset(), batch_size=FLAGS.batch_size)


app.run(main)
