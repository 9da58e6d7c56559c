// Hardware counters of one thread (perf events).
#pragma once
#include <cstdint>
#include <string>

namespace stepscope {

class HardwareCounters {
 public:
  static constexpr int kMost = 4;
  struct Reading {
    uint32_t metric;  // Metric (collector.h)
    uint64_t value;   // since the previous reading
  };
  HardwareCounters() = default;
  ~HardwareCounters();
  HardwareCounters(const HardwareCounters&) = delete;
  void open();  // for the calling thread
  int read(Reading (&readings)[kMost]);  // from any thread; returns the number of readings

 private:
  int group_ = -1;  // a group of perf events with `count_` members
  int count_ = 0;
  uint32_t metrics_[kMost] = {};
  uint64_t last_[kMost] = {};
};

// The reason why hardware counters are unavailable; empty if they are available.
std::string why_no_counters();

}  // namespace stepscope
