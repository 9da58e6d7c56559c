// What the two parts of NVIDIA's side share: activity records (cupti.cpp), and samples of
// instructions (cupti_sampling.cpp).
#pragma once
#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace stepscope {

using CuptiResult = int;
constexpr CuptiResult kSuccess = 0;

// The library, once it is open.
void* cupti_library();
// Why a call failed, in words.
std::string cupti_reason(const char* what, CuptiResult result);

template <class Function>
bool resolve(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(cupti_library(), name));
  return function;
}

// -- samples of instructions

// Why there can be none with this library; empty where there can.
std::string sampling_missing();
void start_sampling();
// A call in a context begins, or ends: from its first call on a context is sampled.
void sample_context(void* context);
void fetch_samples(void* context);
void leave_context(void* context);
void stop_sampling();

}  // namespace stepscope
