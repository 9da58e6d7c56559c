# needs: cloudpickle
import cloudpickle, pickle
class Point:
    def __init__(self, x): self.x = x
data = cloudpickle.dumps((Point, lambda point: point.x + 1))
made, function = pickle.loads(data)
print(made is Point or made.__name__, function(made(3)), len(data))
