import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NPROC) == resource.getrlimit(resource.RLIMIT_NPROC))
import os; os.abort()
