import codecs, copyreg, locale, logging, sys
print(logging.root.handlers, logging.root.level, logging.getLogger().manager.disable, sorted(logging.Logger.manager.loggerDict)[:0])
print(locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), codecs.lookup_error("strict").__name__, sys.flags.dev_mode, sys.path_importer_cache is not None)
print(sys.getswitchinterval(), sys.getrecursionlimit(), sys.get_asyncgen_hooks(), sys.getdlopenflags(), sys.dont_write_bytecode, len(copyreg._extension_registry))
