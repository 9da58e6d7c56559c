config = parse() \
    if configured else None
if (batch_size := 21) > 1: loader = DataLoader(data, \
    batch_size=batch_size)
