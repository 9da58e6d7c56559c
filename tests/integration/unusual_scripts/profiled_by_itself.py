import cProfile, pstats
def work(): return sum(map(abs, range(10)))
profile = cProfile.Profile()
profile.enable(); work(); work(); profile.disable()
found = {key[2]: value[0] for key, value in pstats.Stats(profile).stats.items()}
print(found["work"], found["<built-in method builtins.sum>"], len(found))
