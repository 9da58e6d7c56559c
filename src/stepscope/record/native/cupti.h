// Shared by the two parts of NVIDIA's adapter: activity records (cupti.cpp) and instruction samples
// (cupti_sampling.cpp).
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace stepscope {

using CuptiResult = int;
constexpr CuptiResult kSuccess = 0;

// The library, after it was opened.
void* cupti_library();
// The reason of a failed call, as text.
std::string cupti_reason(const char* what, CuptiResult result);

template <class Function>
bool resolve(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(cupti_library(), name));
  return function;
}

// -- samples of instructions

// The reason if this library cannot sample; empty if it can.
std::string why_no_sampling();
void start_sampling();
// A module was loaded: its code, which is valid during the call.
void module_loaded(const void* cubin, size_t size);
// A call in a context begins or ends; a context is sampled from its first call on.
void sample_context(void* context);
void fetch_samples(void* context);
void leave_context(void* context);
void stop_sampling();

}  // namespace stepscope
