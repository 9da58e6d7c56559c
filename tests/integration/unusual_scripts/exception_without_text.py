class Odd(Exception):
    def __str__(self):
        print("asked")
        raise RuntimeError("no text")
raise Odd()
