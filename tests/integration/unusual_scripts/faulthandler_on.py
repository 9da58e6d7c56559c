import faulthandler, sys
faulthandler.enable()
print(faulthandler.is_enabled())
faulthandler.disable()
