// One stretch of collecting: the tree, the threads, and what operators do to them.
//
// A framework's adapter calls `begin` and `end` around each operator. That is all it has to do, so
// any framework can be followed; pytorch.cpp is the first.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "keys.h"
#include "thread.h"
#include "tree.h"

namespace stepscope {

enum class Metric : uint32_t {
  time, device, allocated, freed, sampled_cpu, sampled_real, cycles, instructions, cache_misses,
  page_faults, stalls, latency_stalls, count
};

// This thread as its signal handler may use it; null where it is not sampled.
Thread* sampled_thread();

struct Options {
  uint32_t sources = kPython | kModules | kOperators;
  uint32_t limit = 1u << 20;
  SampleRates rates;
};

struct Collector {
  explicit Collector(const Options& options);

  const Options options;
  const uint32_t session;
  Keys keys;
  Tree tree;
  std::atomic<uint32_t> module_age{0};  // grows whenever a module has died
  uint64_t started_ticks, started_ns, started_unix_ns;

  std::mutex mutex;  // guards what follows
  std::vector<Thread*> threads;
  std::vector<std::pair<uint64_t, Ring*>> rings;
  std::vector<std::unique_ptr<Ring>> ended_rings;
  std::unordered_map<uint64_t, Stat> ended;  // figures of threads that are gone
  Totals ended_totals;
  std::vector<std::string> notes;
  std::unordered_map<std::string, uint32_t> patterns;  // of annotations, with numbers as #
  uint64_t dropped_samples = 0, dropped_device = 0;

  void add(NodeId node, Metric metric, uint64_t value);  // from any thread, locks
  Ring* ring_of(uint64_t framework_id);
};

// The collector at work, null where none is. A forked child starts with none.
extern std::atomic<Collector*> active;

// This thread's part of `active`; null where there is none or the thread is ending.
Thread* this_thread();

struct Operator {
  const char* name;
  Kind kind = Kind::op;
  int64_t sequence = -1;     // of a forward operator: the next backward node's; of a backward: its own
  uint64_t forward_id = 0;   // the thread of the forward operator, in the framework's counting
  bool is_backward = false;
  bool is_from_python = false;  // begun by a function that returns before it ends
  bool encloses = false;        // nothing that runs in it is counted apart
};

// Both return quickly where nothing is collected; `end` must get the same entry.
void begin(Entry* entry, const Operator& op, uint64_t (*framework_thread)());
void end(Entry* entry);

// The innermost context of this thread right now; null where none is known.
Slot* here(Thread* thread);

Collector* start(const Options& options);
void stop();
// Counts the samples taken so far.
void drain_all(Collector& collector);
// Frees a stopped collector.
void release(Collector* collector);
// The tree as JSON (snapshot.cpp).
std::string snapshot(Collector& collector, bool complete);
void forget_after_fork();

}  // namespace stepscope
