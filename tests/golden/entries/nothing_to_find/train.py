num_batches = 32
for batch in range(num_batches):
    x = torch.randn(32, 3, 224, 224)
    model(x).sum().backward()
