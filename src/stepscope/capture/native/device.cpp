#include "device.h"

#include <cxxabi.h>

#include <cstring>
#include <deque>
#include <vector>

#include "collector.h"
#include "monitor.h"

namespace stepscope {
namespace {

// Launches whose work is not known to be done, oldest forgotten first: a graph's one launch has
// many kernels, so no number is ever known to be used up.
class Launches {
 public:
  void put(uint64_t number, NodeId node) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (nodes_.emplace(number, node).second) order_.push_back(number);
    if (order_.size() <= kMost) return;
    nodes_.erase(order_.front());
    order_.pop_front();
  }
  NodeId find(uint64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = nodes_.find(number);
    return found == nodes_.end() ? kRoot : found->second;
  }
  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    nodes_.clear();
    order_.clear();
  }

 private:
  static constexpr size_t kMost = 1u << 18;
  std::mutex mutex_;
  std::unordered_map<uint64_t, NodeId> nodes_;
  std::deque<uint64_t> order_;
};

Launches& launches() {
  static auto* all = new Launches;
  return *all;
}

// Calls into the driver's library that run in this thread: the runtime's call the driver's.
struct Calls {
  Entry entry;
  int depth = 0;
};
thread_local Calls calls;

const Vendor* vendors[] = {&kNvidia, &kAmd};
std::vector<const Vendor*> started;

}  // namespace

void call_begins(const char* function, uint64_t number) {
  if (calls.depth++ == 0) {
    Operator op{function, Kind::runtime};
    begin(&calls.entry, op, nullptr);
  }
  if (Thread* thread = this_thread())
    if (Slot* slot = here(thread)) launches().put(number, slot->node);
}

void call_ends(uint64_t) {
  if (calls.depth > 0 && --calls.depth == 0) end(&calls.entry);
}

void work_done(uint64_t number, const std::string& name, const char* type, uint64_t begin_ns,
               uint64_t end_ns) {
  Collector* collector = active.load();
  if (!collector) return;
  NodeId launch = launches().find(number);
  if (launch == kRoot || end_ns < begin_ns) {
    std::lock_guard<std::mutex> lock(collector->mutex);
    collector->dropped_device++;
    return;
  }
  bool dropped = false;
  KeyId key = collector->keys.find(Kind::kernel, name, "", 0, type);
  NodeId node = collector->tree.child(launch, key, dropped);
  collector->add(node, Metric::device, end_ns - begin_ns);
  tell({Domain::device, Phase::activity, name.c_str(), 0, 0, int64_t(end_ns - begin_ns), node});
}

std::string readable_kernel(const char* symbol) {
  if (!symbol) return "kernel without a name";
  int status = 0;
  char* plain = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 && plain ? plain : symbol;
  free(plain);
  return name;
}

bool start_devices(std::string& hindered) {
  launches().clear();
  for (const Vendor* vendor : vendors) {
    if (!vendor->is_here()) continue;
    std::string why = vendor->probe();
    if (why.empty()) why = vendor->start();
    if (why.empty()) started.push_back(vendor);
    else hindered += std::string(hindered.empty() ? "" : "; ") + vendor->name + ": " + why;
  }
  return !started.empty();
}

void flush_devices() {
  for (const Vendor* vendor : started) vendor->flush();
}

void stop_devices() {
  for (const Vendor* vendor : started) vendor->stop();
  started.clear();
}

}  // namespace stepscope
