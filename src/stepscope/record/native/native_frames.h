// C++ frames between a context and an operator that it calls for the first time.
#pragma once
#include "collector.h"

namespace stepscope {

// Attaches the new operator of `entry` below the C++ functions that lead to it from `parent`.
void attach_below_native_frames(Thread& thread, Slot* parent, Entry* entry);

}  // namespace stepscope
