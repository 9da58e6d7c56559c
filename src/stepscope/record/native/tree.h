// The calling-context tree of the process. It has no metrics: each thread keeps its own (thread.h),
// so that threads share nothing while they count.
#pragma once
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "keys.h"

namespace stepscope {

using NodeId = uint32_t;
constexpr NodeId kRoot = 0;

struct Node {
  NodeId parent;
  KeyId key;
};

class Tree {
 public:
  // At most `limit` nodes, and `fan` children of each; further ones share one node `(others)`.
  explicit Tree(uint32_t limit = 1u << 20, uint32_t fan = 4096);

  // The child of `parent` with `key`. Sets `dropped` if there was no room for a new one.
  NodeId child(NodeId parent, KeyId key, bool& dropped);
  // A child below additional nodes: native frames.
  NodeId child_below(NodeId parent, NodeId stand_in, KeyId key, bool& dropped);
  bool has(NodeId parent, KeyId key) const;
  size_t size() const;
  std::vector<Node> copy() const;
  Node at(NodeId node) const;

 private:
  NodeId add(uint64_t place, NodeId parent, KeyId key);
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, NodeId> index_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> children_;
  uint32_t limit_, fan_;
};

}  // namespace stepscope
