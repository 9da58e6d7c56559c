import os
reader, writer = os.pipe()
os.dup2(writer, 1); os.close(reader); os.close(writer)
print("nobody reads this")
