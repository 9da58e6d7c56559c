import pdb
pdb.Pdb(nosigint=True, readrc=False).set_trace()
print("never")
