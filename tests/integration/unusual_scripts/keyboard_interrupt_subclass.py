class Interrupted(KeyboardInterrupt): pass
raise Interrupted("by hand")
