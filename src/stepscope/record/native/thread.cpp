#include "thread.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collector.h"

namespace stepscope {

// The thread's system name without a trailing number, so that a pool is one context.
static std::string thread_name() {
  if (syscall(SYS_gettid) == getpid()) return "main";
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  std::string text = name;
  if (text.rfind("pt_autograd", 0) != 0 && Py_IsInitialized() && PyGILState_GetThisThreadState())
    return "python";
  while (!text.empty() && strchr("0123456789_-#:", text.back())) text.pop_back();
  return text.empty() ? "thread" : text;
}

static std::atomic<uint64_t> serials{0};

Thread::Thread(Collector& collector) : collector(collector), serial(++serials) {
  system_id = uint64_t(syscall(SYS_gettid));
  Slot* root = make(kRoot, kRootKey, nullptr);
  root_slot = child(root, collector.keys.find(Kind::thread, thread_name()));
  module_age = collector.module_age.load();
  path.reserve(64);
}

Thread::~Thread() {
  for (auto& chunk : chunks) delete[] chunk.load();
}

Slot* Thread::make(NodeId node, KeyId key, Slot* parent) {
  uint32_t index = slot_count.load(std::memory_order_relaxed);
  if (index >= kChunk * kChunks) return root_slot ? root_slot : parent;
  auto& chunk = chunks[index / kChunk];
  if (!chunk.load(std::memory_order_relaxed)) chunk.store(new Slot[kChunk]);
  Slot* slot = chunk.load(std::memory_order_relaxed) + index % kChunk;
  *slot = Slot{node, key, parent, nullptr, nullptr, Stat{}};
  slot_count.store(index + 1, std::memory_order_release);
  return slot;
}

Slot* Thread::search(Slot* parent, KeyId key) {
  uint64_t place = pack(parent->node, key);
  if (Slot** found = slots.find(place)) return *found;
  bool dropped = false;
  NodeId node = collector.tree.child(parent->node, key, dropped);
  if (dropped) {  // not cached either, to bound memory
    totals.dropped++;
    return of_node(node);
  }
  Slot* slot = make(node, key, parent);
  slots.put(place, slot);
  return slot;
}

Slot* Thread::of_node(NodeId node) {
  uint64_t place = pack(~NodeId(0), node);
  if (Slot** found = slots.find(place)) return *found;
  Slot* slot = make(node, kNoKey, nullptr);
  slots.put(place, slot);
  return slot;
}

}  // namespace stepscope
