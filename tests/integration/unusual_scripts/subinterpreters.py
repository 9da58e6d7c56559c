import sys
try:
    import _interpreters as interpreters
except ImportError:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        sys.exit("none here")
sys.stdout.flush()
other = interpreters.create()
interpreters.run_string(other, "import sys, threading; print('inside', __name__, sys.argv[:0], threading.active_count(), flush=True)")
interpreters.destroy(other)
print("outside")
