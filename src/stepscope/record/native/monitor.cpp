#include "monitor.h"

#include <algorithm>
#include <atomic>

#include "collector.h"

namespace stepscope {
namespace {

struct Watcher {
  int number;
  Domain domain;
  Callback callback;
  void* argument;
};

std::mutex mutex;
std::vector<Watcher>& watchers() {
  static auto* all = new std::vector<Watcher>;
  return *all;
}
std::atomic<uint32_t> watched[size_t(Domain::count)];
int numbers = 0;

// Events caused by a callback are not reported.
__thread bool is_emitting = false;

bool is_wanted(Kind kind, uint32_t sources) {
  switch (kind) {
    case Kind::root:
    case Kind::thread: return false;
    case Kind::python: return sources & kPython;
    case Kind::module: return sources & kModules;
    case Kind::native: return sources & kNative;
    case Kind::kernel:
    case Kind::runtime:
    case Kind::instruction: return sources & kDevice;
    default: return sources & kOperators;
  }
}

}  // namespace

int watch(Domain domain, Callback callback, void* argument) {
  std::lock_guard<std::mutex> lock(mutex);
  watchers().push_back({++numbers, domain, callback, argument});
  watched[size_t(domain)]++;
  return numbers;
}

void unwatch(int number) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& all = watchers();
  auto found = std::find_if(all.begin(), all.end(), [&](auto& w) { return w.number == number; });
  if (found == all.end()) return;
  watched[size_t(found->domain)]--;
  all.erase(found);
}

bool is_watched(Domain domain) {
  return watched[size_t(domain)].load(std::memory_order_relaxed) && !is_emitting;
}

void emit(const MonitorEvent& event) {
  if (!is_watched(event.domain)) return;
  std::vector<Watcher> now;
  {
    std::lock_guard<std::mutex> lock(mutex);
    now = watchers();
  }
  is_emitting = true;
  for (auto& watcher : now)
    if (watcher.domain == event.domain) watcher.callback(event, watcher.argument);
  is_emitting = false;
}

std::vector<PathFrame> call_path(uint32_t sources) {
  Slot* slot = current_slot(this_thread());
  return slot ? call_path(sources, slot->node) : std::vector<PathFrame>();
}

std::vector<PathFrame> call_path(uint32_t sources, NodeId context) {
  std::vector<PathFrame> path;
  Collector* collector = active.load();
  while (collector && context != kRoot) {
    Node node = collector->tree.at(context);
    Keys::Text frame = collector->keys.text(node.key);
    if (is_wanted(frame.kind, sources))
      path.push_back({frame.kind, bool(node.key & kBackward), frame.name, frame.file, frame.line});
    context = node.parent;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace stepscope
