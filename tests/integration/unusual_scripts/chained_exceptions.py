def inner(): {}["missing"]
try:
    inner()
except KeyError as error:
    raise ValueError("bad") from error
