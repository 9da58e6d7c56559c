import os, resource
for n in (255, 499, 500, 501, 502, 512): os.dup2(1, n)
os.write(500, b"to 500\n"); os.write(255, b"to 255\n")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0)
