#include "device.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "collector.h"
#include "monitor.h"

namespace stepscope {
namespace {

// Launches whose work may not be finished; the oldest are dropped first. The launch of a graph has
// many kernels, so a number is never known to be complete.
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

// Nested calls of the vendor's libraries in this thread: the runtime's call the driver's.
struct Calls {
  Entry entry;
  int depth = 0;
};
thread_local Calls calls;

const Vendor* vendors[] = {&kNvidia, &kAmd};
std::vector<const Vendor*> started;

// A kernel's function without its types, arguments and namespaces.
std::string short_kernel(std::string name) {
  const std::string nameless = "(anonymous namespace)::";
  for (size_t at; (at = name.find(nameless)) != std::string::npos;) name.erase(at, nameless.size());
  if (!name.rfind("void ", 0)) name.erase(0, 5);
  name.resize(std::min({name.find('<'), name.find('('), name.size()}));
  size_t outer = name.rfind("::");
  return outer == std::string::npos ? name : name.substr(outer + 2);
}

// Contexts of instructions. For each stall reason of a kernel, the instructions with the most samples
// in the first launch get contexts, a limited number; samples of others count for the reason itself.
class Instructions {
 public:
  using Figures = std::unordered_map<uint64_t, Stat>;  // by metric and context

  // The metrics that `stalls` adds to contexts below a kernel, the most frequent first.
  Figures find(Collector& collector, NodeId kernel, const std::string& symbol,
               const std::vector<Stall>& stalls, LineOf line_of) {
    std::string name = short_kernel(readable_kernel(symbol.c_str()));
    std::lock_guard<std::mutex> lock(mutex_);
    std::unordered_map<const std::string*, NodeId> reasons;
    Figures figures;
    for (const Stall& stall : stalls) {
      auto [reason, is_new] = reasons.try_emplace(stall.reason, kRoot);
      if (is_new) reason->second = child(collector, kernel, *stall.reason);
      NodeId node = place(collector, reason->second, name, stall, [&] { return line_of(symbol, stall); });
      Metric metric = stall.is_latency ? Metric::latency_stalls : Metric::stalls;
      figures[uint64_t(metric) << 32 | node].add(stall.samples);
    }
    return figures;
  }
  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    known_.clear();
  }

 private:
  static constexpr size_t kMost = 8;
  static NodeId child(Collector& collector, NodeId parent, const std::string& name,
                      const SourceLine& source = {}) {
    bool dropped = false;
    KeyId key = collector.keys.find(Kind::instruction, name, source.file, source.line);
    return collector.tree.child(parent, key, dropped);
  }
  template <class Source>
  NodeId place(Collector& collector, NodeId reason, const std::string& name, const Stall& stall,
               Source source) {
    auto& known = known_[reason];
    for (const Known& one : known)
      if (one.offset == stall.offset && one.code == stall.code) return one.node;
    if (known.size() >= kMost || collector.tree.size() >= collector.options.limit / 2)
      return reason;
    char text[32];
    snprintf(text, sizeof text, "+0x%04llx", static_cast<unsigned long long>(stall.offset));
    known.push_back({stall.offset, stall.code, child(collector, reason, name + text, source())});
    return known.back().node;
  }
  struct Known {
    uint64_t offset, code;
    NodeId node;
  };
  std::mutex mutex_;
  std::unordered_map<NodeId, std::vector<Known>> known_;
};

Instructions& instructions() {
  static auto* all = new Instructions;
  return *all;
}

// Tell watchers of the device about a call; their time is not the call's.
void emit_call(Phase phase, const char* function, const std::string& details) {
  OwnTime own;
  emit({Domain::device, phase, function, 0, 0, 0, kRoot, details.c_str()});
}

void add_reason(std::string& all, const Vendor& vendor, const std::string& why) {
  if (!why.empty()) all += std::string(all.empty() ? "" : "; ") + vendor.name + ": " + why;
}

}  // namespace

void call_begins(const char* function, uint64_t number, Arguments arguments, const void* parameters,
                 KeyId key) {
  if (calls.depth++ == 0) {
    Operator op{function, Kind::runtime};
    op.key = key;
    begin(&calls.entry, op, nullptr);
    if (is_watched(Domain::device))
      emit_call(Phase::begin, function, arguments ? arguments(function, parameters) : "");
  }
  if (Thread* thread = number ? this_thread() : nullptr)
    if (Slot* slot = current_slot(thread)) launches().put(number, slot->node);
}

void call_ends(const char* function) {
  if (calls.depth == 0 || --calls.depth > 0) return;
  if (is_watched(Domain::device)) emit_call(Phase::end, function, "");
  end(&calls.entry);
}

void work_done(uint64_t number, const std::string& name, const char* type, uint64_t begin_ns,
               uint64_t end_ns, const Launch* launched) {
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
  if (launched) {
    collector->add(node, Metric::blocks, launched->blocks);
    collector->add(node, Metric::threads, launched->threads);
    collector->add(node, Metric::registers, launched->registers);
    collector->add(node, Metric::shared, launched->shared_bytes);
  }
  emit({Domain::device, Phase::activity, name.c_str(), 0, 0, int64_t(end_ns - begin_ns), node});
}

void kernel_sampled(uint64_t number, const std::string& symbol, std::vector<Stall>& stalls,
                    LineOf line_of) {
  Collector* collector = active.load();
  if (!collector) return;
  NodeId launch = launches().find(number);
  if (launch == kRoot) {
    std::lock_guard<std::mutex> lock(collector->mutex);
    collector->dropped_device++;
    return;
  }
  bool dropped = false;
  std::string name = readable_kernel(symbol.c_str());
  KeyId key = collector->keys.find(Kind::kernel, name, "", 0, "kernel");
  NodeId kernel = collector->tree.child(launch, key, dropped);
  std::stable_sort(stalls.begin(), stalls.end(),
                   [](auto& a, auto& b) { return a.samples > b.samples; });
  auto figures = instructions().find(*collector, kernel, symbol, stalls, line_of);
  std::lock_guard<std::mutex> lock(collector->mutex);
  for (auto& [place, stat] : figures) collector->ended[place].add(stat);
}

void samples_dropped(uint64_t count) {
  Collector* collector = active.load();
  if (!collector || !count) return;
  std::lock_guard<std::mutex> lock(collector->mutex);
  collector->dropped_samples += count;
}

void add_note(const std::string& sentence) {
  Collector* collector = active.load();
  if (!collector) return;
  std::lock_guard<std::mutex> lock(collector->mutex);
  auto& notes = collector->notes;
  if (std::find(notes.begin(), notes.end(), sentence) == notes.end()) notes.push_back(sentence);
}

OwnTime::OwnTime() : since_(ticks()) {}

OwnTime::~OwnTime() {
  Thread* thread = this_thread();
  if (!thread) return;
  bool is_outside = !(thread->activity.load(std::memory_order_relaxed) & 1);
  if (is_outside) thread->toggle_busy();
  thread->totals.own += ticks() - since_;
  if (is_outside) thread->toggle_busy();
}

std::string readable_kernel(const char* symbol) {
  if (!symbol) return "kernel without a name";
  int status = 0;
  char* plain = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string name = status == 0 && plain ? plain : symbol;
  free(plain);
  return name;
}

bool start_devices(bool stalls, std::string& hindered, std::string& unsampled) {
  launches().clear();
  instructions().clear();
  for (const Vendor* vendor : vendors) {
    if (!vendor->is_present()) continue;
    std::string why = vendor->probe();
    std::string no_stalls = stalls && why.empty() ? vendor->probe_stalls() : "";
    if (why.empty()) why = vendor->start(stalls && no_stalls.empty());
    if (why.empty()) started.push_back(vendor);
    add_reason(hindered, *vendor, why);
    add_reason(unsampled, *vendor, no_stalls);
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
