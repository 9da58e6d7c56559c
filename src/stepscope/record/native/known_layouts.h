// Where each version of CPython keeps its frames: the one table, of the collector and of the library.
//
// Of 64-bit CPython with the GIL, not a debug build. The interpreter's frame is in no public header
// (Include/internal/pycore_frame.h; from 3.14 on pycore_interpframe_structs.h). The rest of a row is
// what the headers of that version say (header_layout.cpp, which a test compares); the library, which
// is built without them, needs it to sample.
#pragma once
#include "python_layout.h"

namespace stepscope {

constexpr PythonLayout kKnownLayouts[] = {
    {0x030A, 32, 24, 96, 0, 352, 8, 16, 176, 24, 0, 176, 104, 112, 120, 40, 0, 0, 0, 0, 16, 32, 48, 72,
     2, 32, 64, 32},
    {0x030B, 32, 48, 56, 69, 72, 8, 16, 152, 56, 8, 192, 112, 128, 136, 72, 184, 76, 68, 0, 16, 32, 48,
     72, 2, 32, 64, 32},
    {0x030C, 0, 8, 56, 70, 72, 8, 16, 136, 56, 0, 200, 112, 128, 136, 68, 192, 0, 0, 76, 16, 32, 40, 56,
     2, 32, 64, 32},
    {0x030D, 0, 8, 56, 70, 72, 8, 16, 152, 72, 0, 208, 112, 128, 136, 68, 200, 0, 0, 76, 16, 32, 40, 56,
     2, 32, 64, 32},
    {0x030E, 0, 8, 56, 74, 80},  // the library does not sample it
};

// The row of a version such as 0x030B; that of version 0 if frames of the version are not known.
constexpr PythonLayout known_layout(uint32_t version) {
  for (const PythonLayout& layout : kKnownLayouts)
    if (layout.version == version) return layout;
  return {};
}

constexpr bool keeps_a_stack(uint32_t version) { return version >= 0x030B; }

// Owners of a frame from this one on have no Python code (3.12 and later).
constexpr char kOwnedByInterpreter = 3;
constexpr char last_owner(uint32_t version) { return version >= 0x030E ? 4 : 3; }
constexpr bool is_shim_of(uint32_t version, char owner) {
  return version >= 0x030C && owner >= kOwnedByInterpreter;
}

// From 3.14 on a reference in a frame has its kind in its low bits.
constexpr uintptr_t tag_bits(uint32_t version) { return version >= 0x030E ? 3 : 0; }

}  // namespace stepscope
