// The fastest monotonic clock. Ticks are converted to nanoseconds when a tree is written.
#pragma once
#include <cstdint>
#include <ctime>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace stepscope {

inline uint64_t nanoseconds(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  clock_gettime(clock, &now);
  return uint64_t(now.tv_sec) * 1000000000u + uint64_t(now.tv_nsec);
}

// Whether the processor's counter has a constant rate on all cores.
inline bool counter_is_steady() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8));
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

extern const bool steady;

inline uint64_t ticks() {
#if defined(__x86_64__)
  if (steady) return __rdtsc();
#elif defined(__aarch64__)
  uint64_t now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#endif
  return nanoseconds();
}

}  // namespace stepscope
