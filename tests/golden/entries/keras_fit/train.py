import keras
model.fit(x_train, y_train, batch_size=64, epochs=3, validation_data=(x, y))
model.evaluate(x_test, y_test, batch_size=512)
