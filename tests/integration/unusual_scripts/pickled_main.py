import pickle
class Point:
    def __init__(self): self.x = 1
print(type(pickle.loads(pickle.dumps(Point()))) is Point, Point.__module__)
