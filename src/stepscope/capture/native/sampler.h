// Samples of CPU time, elapsed time and hardware counters, by signals to each thread.
//
// The handler only reads what its own thread has written, and writes to a buffer made beforehand.
// Who drains the buffers (a thread of ours, or the writer of the file) does the rest.
#pragma once
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>

namespace stepscope {

struct Thread;
struct Collector;

struct SampleRates {
  unsigned cpu = 0, real = 0;  // samples a second; 0 for none
  bool counters = false;
};

constexpr int kCounters = 4;

struct Samples {
  static constexpr uint32_t kRoom = 1u << 19;
  std::unique_ptr<char[]> buffer{new char[kRoom]};
  std::atomic<uint64_t> written{0}, read{0};
  std::atomic<uint32_t> lost{0};
  std::atomic<bool> is_handling{false};
  timer_t timers[2];
  bool has_timer[2] = {false, false};
  uint64_t last[2] = {0, 0};
  int counters = -1;  // a group of perf events, of which `counted` could be had
  int counted = 0;
  uint8_t metrics[kCounters] = {};
  uint64_t last_counters[kCounters] = {};
  ~Samples();
};

// Prepares the process; returns why it cannot be, or nothing.
std::string prepare_sampling(const SampleRates& rates);
// This thread is sampled from now on.
void sample_thread(Thread& thread);
void end_sampling(Thread& thread);
// Counts what the thread's handler has written; the collector's lock is held.
void drain(Collector& collector, Thread& thread);
// Why hardware counters cannot be had; empty where they can.
std::string counters_missing();

}  // namespace stepscope
