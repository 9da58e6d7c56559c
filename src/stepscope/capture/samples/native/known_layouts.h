// Layouts of the interpreters that the library can sample: 64-bit CPython with the GIL, not a debug
// build. As the headers of each version have them (header_layout.cpp, which a test compares).
#pragma once
#include "../../native/python_layout.h"

namespace stepscope {

constexpr PythonLayout kKnownLayouts[] = {
    {0x030A, 8, 16, 176, 24, 0, 32, 24, 96, 0, 352, 176, 104, 112, 120, 40, 0, 0, 0, 0, 16, 32, 48, 72,
     2, 32, 64, 32},
    {0x030B, 8, 16, 152, 56, 8, 32, 48, 56, 69, 72, 192, 112, 128, 136, 72, 184, 76, 68, 0, 16, 32, 48,
     72, 2, 32, 64, 32},
    {0x030C, 8, 16, 136, 56, 0, 0, 8, 56, 70, 72, 200, 112, 128, 136, 68, 192, 0, 0, 76, 16, 32, 40, 56,
     2, 32, 64, 32},
    {0x030D, 8, 16, 152, 72, 0, 0, 8, 56, 70, 72, 208, 112, 128, 136, 68, 200, 0, 0, 76, 16, 32, 40, 56,
     2, 32, 64, 32},
};

inline const PythonLayout* known_layout(uint32_t version) {
  for (const PythonLayout& layout : kKnownLayouts)
    if (layout.version == version) return &layout;
  return nullptr;
}

}  // namespace stepscope
