// C++ frames between a context and the operator that it calls for the first time.
#pragma once
#include "collector.h"

namespace stepscope {

// Puts the operator of `entry`, new below `parent`, under the C++ functions that lead to it.
void below_native_frames(Thread& thread, Slot* parent, Entry* entry);

}  // namespace stepscope
