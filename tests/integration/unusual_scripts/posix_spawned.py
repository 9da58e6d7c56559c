import os, sys
actions = [(os.POSIX_SPAWN_OPEN, 1, "out.txt", os.O_WRONLY | os.O_CREAT, 0o644)]
child = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", "print('spawned')"], os.environ, file_actions=actions)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), open("out.txt").read())
