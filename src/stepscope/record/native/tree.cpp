#include "tree.h"

namespace stepscope {

static uint64_t pack(NodeId parent, KeyId key) { return uint64_t(parent) << 32 | key; }

Tree::Tree(uint32_t limit, uint32_t fan) : limit_(limit), fan_(fan) {
  nodes_.push_back({0, kRootKey});
  children_.push_back(0);
}

NodeId Tree::add(uint64_t place, NodeId parent, KeyId key) {
  NodeId node = NodeId(nodes_.size());
  nodes_.push_back({parent, key});
  children_.push_back(0);
  children_[parent]++;
  index_.emplace(place, node);
  return node;
}

NodeId Tree::child(NodeId parent, KeyId key, bool& dropped) {
  return child_below(parent, parent, key, dropped);
}

NodeId Tree::child_below(NodeId parent, NodeId stand_in, KeyId key, bool& dropped) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = index_.find(pack(parent, key));
  if (found != index_.end()) return found->second;
  if (nodes_.size() < limit_ && children_[stand_in] < fan_)
    return add(pack(parent, key), stand_in, key);
  dropped = true;
  if (nodes_.size() >= limit_ + (limit_ >> 3)) parent = kRoot;
  KeyId others = kOthersKey | (key & kBackward);
  found = index_.find(pack(parent, others));
  return found != index_.end() ? found->second : add(pack(parent, others), parent, others);
}

bool Tree::has(NodeId parent, KeyId key) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return index_.count(pack(parent, key)) > 0;
}

size_t Tree::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return nodes_.size();
}

std::vector<Node> Tree::copy() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return nodes_;
}

Node Tree::at(NodeId node) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return nodes_[node];
}

}  // namespace stepscope
