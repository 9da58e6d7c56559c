def numbers():
    try:
        yield 1
    finally:
        print("generator closed")
left = numbers(); next(left)
class Last:
    def __del__(self): print("deleted")
last = Last()
