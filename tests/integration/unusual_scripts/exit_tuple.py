class Odd:
    def __repr__(self):
        print("asked")
        raise RuntimeError("no text")
raise SystemExit((1, Odd()))
