# starts: warm
import threading, torch
torch.manual_seed(0)
models = [torch.nn.Linear(8, 1) for _ in range(3)]
losses = {}
def train(number):
    optimizer = torch.optim.SGD(models[number].parameters(), lr=0.01)
    for _ in range(9):
        optimizer.zero_grad(); loss = models[number](torch.ones(2, 8)).sum(); loss.backward(); optimizer.step()
    losses[number] = loss.item()
threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(losses.items()), threading.active_count())
