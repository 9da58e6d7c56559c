import multiprocessing
class Job:
    def __init__(self, number): self.number = number
def work(jobs, done):
    while (job := jobs.get()) is not None: done.put(job)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    jobs, done = context.Queue(), context.Queue()
    process = context.Process(target=work, args=(jobs, done)); process.start()
    for number in range(3): jobs.put(Job(number))
    jobs.put(None)
    print([(type(job) is Job, job.number) for job in (done.get() for _ in range(3))])
    process.join(); print(process.exitcode)
