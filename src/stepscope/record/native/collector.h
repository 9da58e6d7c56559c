// One collection: the tree, the threads, and the effects of operators on them.
//
// A framework's adapter calls `begin` and `end` around each operator and needs nothing else;
// pytorch.cpp is the first adapter.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "flusher.h"
#include "keys.h"
#include "thread.h"
#include "tree.h"

namespace stepscope {

enum class Metric : uint32_t {
  time, device, allocated, freed, sampled_cpu, sampled_real, cycles, instructions, cache_misses,
  page_faults, stalls, latency_stalls, thread_cpu, blocks, threads,
  registers, shared, count
};

struct Options {
  uint32_t sources = kPython | kModules | kOperators;
  uint32_t limit = 1u << 20;
  SampleRates rates;
};

struct Collector {
  explicit Collector(const Options& options);

  const Options options;
  const uint32_t session;
  const pid_t process;
  Keys keys;
  Tree tree;
  std::atomic<uint32_t> module_age{0};  // incremented whenever a module is freed
  uint64_t started_ticks, started_ns, started_unix_ns;

  std::mutex mutex;  // guards the members below
  std::vector<Thread*> threads;
  std::vector<std::pair<uint64_t, Ring*>> rings;
  std::vector<std::unique_ptr<Ring>> ended_rings;
  std::unordered_map<uint64_t, Stat> ended;  // metrics of threads that have ended
  Totals ended_totals;
  std::vector<std::string> notes;
  std::unordered_map<std::string, uint32_t> patterns;  // names of annotations, with numbers replaced by #
  // Profiles of windows, by the name of their member; few, and of limited size (jax_windows.py).
  std::map<std::string, std::shared_ptr<const std::string>> windows;
  uint64_t dropped_samples = 0, dropped_device = 0;
  Sampler* sampler = nullptr;  // null if nothing is sampled
  Flusher* flusher = nullptr;  // null if the capture is not written during the run

  void add(NodeId node, Metric metric, uint64_t value);  // from any thread, locks
  // Modules that threads have called, by address and calling module.
  void remember_module(const void* module, KeyId inside, KeyId key, uint32_t age);
  KeyId known_module(const void* module, KeyId inside);
  Ring* ring_of(uint64_t framework_id);

 private:
  std::mutex modules_mutex_;
  uint32_t modules_age_ = 0;
  std::unordered_map<uint64_t, KeyId> modules_;
};

// The active collector, or null. A forked child starts with none.
extern std::atomic<Collector*> active;

// This thread's data in `active`; null without a collector, or if the thread is ending.
Thread* this_thread();

struct Operator {
  const char* name;
  Kind kind = Kind::op;
  int64_t sequence = -1;     // forward: that of the next backward node; backward: its own
  uint64_t forward_id = 0;   // the forward operator's thread, in the framework's numbering
  bool is_backward = false;
  bool is_from_python = false;  // begun by a Python function that returns before it ends
  bool encloses = false;        // nested operators are not counted separately
  bool measures_cpu = false;    // its thread's CPU time too: a call of the kernel
  KeyId key = kNoKey;           // where the caller knows it; else `name` is looked up
};

// Both return quickly if nothing is collected; `end` must get the same entry.
void begin(Entry* entry, const Operator& op, uint64_t (*framework_thread)());
void end(Entry* entry);

// The current innermost context of this thread, or null.
Slot* current_slot(Thread* thread);
// A call that has ended, below the current context.
struct Spent {
  std::vector<KeyId> path;  // of the call's context, outermost first
  uint64_t time;            // ticks
  uint64_t cpu_ns = 0;      // 0: not measured
};
void add_call(Thread& thread, const Spent& spent);
void add_extra(Thread& thread, Metric metric, NodeId node, uint64_t value);
// Nanoseconds per tick so far.
double nanoseconds_per_tick(const Collector& collector);

Collector* start(const Options& options);
void stop();
// Frees a stopped collector.
void release(Collector* collector);
// The tree as JSON (snapshot.cpp).
std::string snapshot(Collector& collector, bool complete);
void forget_after_fork();

}  // namespace stepscope
