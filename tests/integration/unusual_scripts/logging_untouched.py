import logging
print(logging.root.handlers, logging.root.level, logging.getLevelName(logging.getLogger("torch").level), logging.lastResort)
logging.warning("from the root")
logging.getLogger("mine").error("from mine", stack_info=False)
logging.captureWarnings(True)
