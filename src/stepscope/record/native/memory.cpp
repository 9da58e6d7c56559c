// Allocations and releases, counted in the context where they happen.
#include "memory.h"

#include <array>

#include "collector.h"
#include "monitor.h"

namespace stepscope {
namespace {

// Sizes of allocations, as a release has only the address.
struct Shard {
  std::mutex mutex;
  std::unordered_map<const void*, size_t> sizes;
};
std::array<Shard, 64>& shards() {
  static auto* all = new std::array<Shard, 64>;
  return *all;
}

Shard& shard_of(const void* memory) {
  return shards()[(reinterpret_cast<uintptr_t>(memory) >> 6) % shards().size()];
}

void count(Metric metric, size_t bytes) {
  Thread* thread = this_thread();
  if (!thread || thread->is_busy) return;
  uint64_t entered = ticks();
  add_extra(*thread, metric, current_slot(thread)->node, bytes);
  thread->totals.own += ticks() - entered;
}

}  // namespace

void allocated(const char* device, const void* memory, size_t bytes) {
  if (!memory || !active.load(std::memory_order_relaxed)) return;
  {
    Shard& shard = shard_of(memory);
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.sizes[memory] = bytes;
  }
  count(Metric::allocated, bytes);
  emit({Domain::memory, Phase::allocate, device, reinterpret_cast<uintptr_t>(memory),
        int64_t(bytes)});
}

void released(const char* device, const void* memory) {
  size_t bytes = 0;
  {
    Shard& shard = shard_of(memory);
    std::lock_guard<std::mutex> lock(shard.mutex);
    auto found = shard.sizes.find(memory);
    if (found == shard.sizes.end()) return;  // allocated before watching began
    bytes = found->second;
    shard.sizes.erase(found);
  }
  if (!active.load(std::memory_order_relaxed)) return;
  count(Metric::freed, bytes);
  emit({Domain::memory, Phase::release, device, reinterpret_cast<uintptr_t>(memory),
        int64_t(bytes)});
}

}  // namespace stepscope
