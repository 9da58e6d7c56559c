import os, sqlite3, tempfile
with tempfile.TemporaryDirectory(dir=".") as folder, sqlite3.connect(os.path.join(folder, "a.db")) as base:
    base.execute("create table t (x)"); base.execute("insert into t values (1)")
    print(base.execute("select * from t").fetchall())
left = tempfile.NamedTemporaryFile(dir=".")
print(len(os.listdir(".")))
