#pragma once
#include <cstddef>

namespace stepscope {

// Called by allocators, in the thread that allocates or releases.
void allocated(const char* device, const void* memory, size_t bytes);
void released(const char* device, const void* memory);

}  // namespace stepscope
