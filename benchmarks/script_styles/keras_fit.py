"""Keras on torch: `fit` with a custom training step for the timers."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np
import torch
from hand_timers import STEPS, end_step, time_calls, timed

keras.utils.set_random_seed(0)
time_calls(torch.Tensor, "backward", "backward")


class Timed(keras.Model):
    def train_step(self, data):
        inputs, labels = data
        with timed("backward"):
            self.zero_grad()
        with timed("forward"):
            loss = self.compute_loss(y=labels, y_pred=self(inputs, training=True))
        loss.backward()
        with timed("optimizer"):
            gradients = [variable.value.grad for variable in self.trainable_variables]
            with torch.no_grad():
                self.optimizer.apply(gradients, self.trainable_variables)
        end_step()
        return {"loss": loss}


layers = keras.layers
inputs = layers.Input((256,), name="pixels")
hidden = layers.Dense(512, activation="gelu", name="hidden")(inputs)
model = Timed(inputs, layers.Dense(10, name="scores")(hidden), name="classifier")
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
images = np.random.rand(128 * STEPS, 256).astype("float32")
model.fit(images, np.random.randint(0, 10, len(images)), batch_size=128, verbose=0)
