// Samples of CPU time, elapsed time and hardware counters, taken by a separate thread.
//
// It sends no signals and stops no threads: it reads each thread's CPU clock, and its stack by copies
// that may fail (stack_reader.h). It has no Python state. A sampled thread only publishes its current
// operator.
#pragma once
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "frames.h"
#include "hardware_counters.h"
#include "stack_reader.h"
#include "stat.h"
#include "tree.h"

namespace stepscope {

struct Collector;

struct SampleRates {
  unsigned cpu = 0, real = 0;  // samples per second; 0 for none
  bool counters = false;
};

// A thread's position, which it publishes at each operator's begin and end.
struct Position {
  const PyThreadState* state = nullptr;  // null if no Python frames are to be read
  const void* until = nullptr;           // the frame that called the operator
  NodeId node = kRoot;
  KeyId inside = kNoKey;  // the module that called it
  bool operator==(const Position&) const = default;
};

// A sampled thread; shared by the thread and the sampler.
class Target {
 public:
  explicit Target(NodeId root_node, bool has_counters);  // called in the thread itself
  void publish(const Position& position);             // only by the thread itself
  // The position and its version; false while it is being written.
  bool read(Position& position, uint32_t& version) const;
  bool has_version(uint32_t version) const;
  // CPU time of the thread, ns; false if it has ended.
  bool cpu_time(uint64_t& now) const;
  bool is_preempted() const;  // waits for the processor on which the sampler runs

  const unsigned long thread_id;
  HardwareCounters counters;
  // Guarded by the sampler's lock.
  uint64_t last_cpu = 0, last_real = 0;
  NodeId last_node;  // of the last sample
  bool has_ended = false;
  // Used only by the sampler's thread.
  uint64_t seen_cpu = ~uint64_t(0);  // CPU time when the stack was read
  uint32_t seen_version = 0;
  NodeId seen_node = kRoot;

 private:
  clockid_t clock_;
  const pid_t system_id_;
  std::atomic<uint32_t> version_{0};
  std::atomic<const PyThreadState*> state_{nullptr};
  std::atomic<const void*> until_{nullptr};
  std::atomic<NodeId> node_;
  std::atomic<KeyId> inside_{kNoKey};
};

class Sampler {
 public:
  Sampler(Collector& collector, const SampleRates& rates);
  // Starts the thread; returns the reason if it cannot, or nothing.
  std::string start();
  void stop();
  std::shared_ptr<Target> add_this_thread(NodeId root_node);
  void remove(Target& target);  // in that thread, or after the sampler was stopped
  void add_figures(std::unordered_map<uint64_t, Stat>& figures);
  uint64_t torn();  // samples that were postponed because the stack changed while it was read

 private:
  void run();
  void sample_all(bool cpu, bool real);
  void sample(Target& target, bool cpu, bool real);
  bool locate(Target& target, NodeId& node);
  bool find_node(const Target& target, const Position& position, NodeId& node);
  NodeId descend(const Position& position);
  KeyId key_of(const SampledFrame& frame);
  void count(Target& target, uint64_t interval, NodeId node, bool is_cpu);

  Collector& collector_;
  const SampleRates rates_;
  StackReader reader_;
  std::mutex mutex_;
  std::condition_variable wakeup_;
  bool is_stopping_ = false;
  std::vector<std::shared_ptr<Target>> targets_, sampled_;
  std::unordered_map<uint64_t, Stat> figures_;
  uint64_t torn_ = 0;
  uint64_t random_ = 88172645463325252u;
  pthread_t thread_{};
  bool is_running_ = false;
};

// Why samples have no Python frames here; empty if they do.
std::string why_no_frames();

}  // namespace stepscope
