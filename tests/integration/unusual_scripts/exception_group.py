import sys
if sys.version_info < (3, 11):
    raise ValueError("no groups")
def fail(number): raise ValueError(number)
errors = []
for number in range(2):
    try:
        fail(number)
    except ValueError as error:
        errors.append(error)
raise ExceptionGroup("both", errors)
