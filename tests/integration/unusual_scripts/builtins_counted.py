import builtins, sys
calls = {"open": 0, "__import__": 0, "compile": 0, "exec": 0, "print": 0}
def counted(name, function):
    def call(*arguments, **named):
        calls[name] += 1
        return function(*arguments, **named)
    return call
for name in calls: setattr(builtins, name, counted(name, getattr(builtins, name)))
open("note.txt", "w").close()
import colorsys
sys.stdout.write(f"{calls['open']} {calls['__import__']} {calls['print']} {calls['compile']}\n")
