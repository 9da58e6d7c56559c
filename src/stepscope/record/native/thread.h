// A thread's data: metrics of its contexts, and its current stack.
//
// Only the thread itself writes here, and nothing moves, so that the flusher can read concurrently:
// chunks are added but never grow, and `activity` is odd while the thread writes.
#pragma once
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "frames.h"
#include "sampler.h"
#include "stat.h"
#include "tree.h"

namespace stepscope {

struct Collector;
struct Thread;

// A thread's view of a context. `last` is the child entered most recently, and `next` the sibling that
// was entered after this one last time: training is repetitive, so the next child is usually found
// without a search.
struct Slot {
  NodeId node;
  KeyId key;
  Slot* parent;
  Slot* last;
  Slot* next;
  Stat time;
};

// A frame of the Python stack: its position, the module if it is a module's call, and its context.
struct Place {
  uintptr_t position;
  PyObject* module;
  Slot* slot;
  KeyId inside;  // the module whose call this is part of
};

struct Anchor {
  Frame* frame;
  uintptr_t position;
};
constexpr int kAnchors = 4;

// A running operator. It is stored in the object that the framework passes from begin to end.
struct Entry {
  Entry* below = nullptr;
  uint64_t thread = 0;  // the thread that began it; 0 if nothing is collected
  Slot* slot = nullptr;
  NodeId node = kRoot;
  uint64_t start = 0, own = 0;
  Frame* frame = nullptr;
  uintptr_t position = 0;
  const void* stack = nullptr;
  KeyId key = kNoKey;
  KeyId inside = kNoKey;  // the module that called it
  uint32_t session = 0;
  bool is_pending = false;     // its context is known after that of the first operator below it
  bool is_annotation = false;  // the Python frames that opened it may be gone
  bool encloses = false;       // nested operators are not counted separately
  bool measures_cpu = false;
  uint64_t cpu_ns = 0;  // of its thread when it began
  std::atomic<bool> is_linked{false}, has_ended{false};
  Anchor anchors[kAnchors];
};

// Contexts of the last forward operators by sequence number, the parents of backward operators. Only
// its thread writes; others read. An outgrown table is kept, as others may be reading it.
class Ring {
 public:
  static constexpr uint32_t kSmallest = 1u << 16, kLargest = 1u << 20;
  Ring() { use(std::make_unique<Table>(kSmallest)); }
  void put(uint64_t sequence, NodeId node) {
    if (is_small_.load(std::memory_order_relaxed)) grow();
    table_.load(std::memory_order_relaxed)->at(sequence).store(sequence << 32 | node,
                                                               std::memory_order_relaxed);
  }
  // The node of a sequence number; kRoot if unknown or already replaced.
  NodeId find(uint64_t sequence) {
    Table* table = table_.load(std::memory_order_acquire);
    uint64_t cell = table->at(sequence).load(std::memory_order_relaxed);
    if (uint32_t(cell >> 32) == uint32_t(sequence)) return NodeId(cell);
    if (cell && table->size < kLargest) is_small_.store(true, std::memory_order_relaxed);
    return kRoot;
  }

 private:
  struct Table {
    explicit Table(uint32_t size) : size(size), cells(new std::atomic<uint64_t>[size]()) {}
    std::atomic<uint64_t>& at(uint64_t sequence) { return cells[sequence & (size - 1)]; }
    const uint32_t size;
    const std::unique_ptr<std::atomic<uint64_t>[]> cells;
  };
  void use(std::unique_ptr<Table> table) {
    table_.store(table.get(), std::memory_order_release);
    tables_.push_back(std::move(table));
  }
  void grow() {
    Table& old = *table_.load(std::memory_order_relaxed);
    auto table = std::make_unique<Table>(old.size * 2);
    for (uint32_t i = 0; i < old.size; i++)
      if (uint64_t cell = old.cells[i].load(std::memory_order_relaxed))
        table->at(cell >> 32).store(cell, std::memory_order_relaxed);
    use(std::move(table));
    is_small_.store(false, std::memory_order_relaxed);
  }
  std::atomic<Table*> table_{nullptr};
  std::vector<std::unique_ptr<Table>> tables_;
  std::atomic<bool> is_small_{false};
};

// A hash map with open addressing; only its thread uses it.
template <class Value>
class Map {
 public:
  Map() : cells_(256) {}
  Value* find(uint64_t key) {
    for (size_t i = hash(key);; i++) {
      Cell& cell = cells_[i & (cells_.size() - 1)];
      if (!cell.used) return nullptr;
      if (cell.key == key) return &cell.value;
    }
  }
  void put(uint64_t key, Value value) {
    if (++size_ * 2 > cells_.size()) grow();
    insert(key, value);
  }
  void clear() { *this = Map(); }
  size_t size() const { return size_; }

 private:
  struct Cell {
    uint64_t key = 0;
    Value value{};
    bool used = false;
  };
  size_t hash(uint64_t key) const { return size_t(key * 0x9E3779B97F4A7C15ull >> 20); }
  void insert(uint64_t key, Value value) {
    for (size_t i = hash(key);; i++) {
      Cell& cell = cells_[i & (cells_.size() - 1)];
      if (cell.used && cell.key != key) continue;
      cell = {key, value, true};
      return;
    }
  }
  void grow() {
    std::vector<Cell> old(cells_.size() * 2);
    old.swap(cells_);
    for (auto& cell : old)
      if (cell.used) insert(cell.key, cell.value);
  }
  std::vector<Cell> cells_;
  size_t size_ = 0;
};

// An operator's name, cached by the framework's address. An address may be reused for another name,
// so the text is compared too.
struct Name {
  std::string text;
  KeyId key = kNoKey;
  bool is_engine = false;
};

struct PlaceKey {
  KeyId key;
  uint8_t flags;
};
enum : uint8_t { kHidden = 1, kBarrier = 2, kAnnotator = 4, kPassing = 8 };  // passing: not kept alive

struct Totals {
  uint64_t time = 0, own = 0;  // ticks of the program's operators, and of this collector
  uint64_t operators = 0, backward = 0, linked = 0, missed = 0, dropped = 0;
  void add(const Totals& other) {
    time += other.time, own += other.own, operators += other.operators;
    backward += other.backward, linked += other.linked;
    missed += other.missed, dropped += other.dropped;
  }
};

struct Thread {
  explicit Thread(Collector& collector);
  ~Thread();
  Thread(const Thread&) = delete;

  Slot* child(Slot* parent, KeyId key) {
    Slot* last = parent->last;
    if (last && last->next && last->next->key == key && last->next->parent == parent)
      return parent->last = last->next;
    Slot* found = search(parent, key);
    if (last) last->next = found;
    return parent->last = found;
  }
  Slot* of_node(NodeId node);  // a context that another thread may have created
  Slot* search(Slot* parent, KeyId key);
  Slot* make(NodeId node, KeyId key, Slot* parent);
  bool is_known(Slot* parent, KeyId key) { return slots.find(pack(parent->node, key)) != nullptr; }
  static uint64_t pack(NodeId parent, KeyId key) { return uint64_t(parent) << 32 | key; }

  static constexpr uint32_t kChunk = 512, kChunks = 4096;

  Collector& collector;
  Entry* top = nullptr;
  Slot* root_slot = nullptr;  // the thread's node
  void toggle_busy() {
    activity.store(activity.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  std::atomic<uint32_t> activity{0};
  bool is_busy = false;  // a Python callback of the collector runs; its calls are not counted
  Frame* interrupted = nullptr;  // the frame that called such a callback
  uint32_t module_age = 0;
  Totals totals;

  // The Python stack when it was last read, outermost first, below `base`.
  std::vector<Place> path;
  Slot* base = nullptr;
  KeyId inside = kNoKey;  // the module of the context found last

  Map<Slot*> slots;
  Map<PlaceKey> places;
  Map<KeyId> modules;
  Map<Name*> names, texts;
  std::vector<std::unique_ptr<Name>> name_store;
  Name passing;  // for operators beyond the limit of cached names
  std::unique_ptr<Ring> ring;
  uint64_t framework_id = 0;

  std::atomic<uint32_t> slot_count{0};
  std::atomic<Slot*> chunks[kChunks] = {};

  const uint64_t serial;  // unique over all threads ever, unlike addresses
  uint64_t system_id = 0;
  std::shared_ptr<Target> target;  // null if it is not sampled
  // Metrics of contexts other than time, by metric (collector.h).
  std::mutex extra_mutex;
  std::unordered_map<uint64_t, Stat> extra;
};

}  // namespace stepscope
