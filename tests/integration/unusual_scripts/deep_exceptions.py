error = None
for number in range(200):
    new = ValueError(number)
    new.__cause__ = error
    error = new
error.add_note("a note") if hasattr(error, "add_note") else None
raise error
