// The sources that the library was built from (`build.py`).

#include <cstdint>

#include "exported.h"

EXPORTED std::uint32_t stepscope_fingerprint() { return STEPSCOPE_FINGERPRINT; }
