// Copies of memory, of this process or a child, that fail for unmapped addresses instead of faulting.
//
// The sampler reads memory that other threads change and free at any time, so it never dereferences
// pointers: the kernel copies (process_vm_readv) and rejects unreadable addresses.
#pragma once
#include <cstddef>
#include <string>

namespace stepscope {

struct Piece {
  const void* from;
  void* to;
  size_t size;
};
constexpr int kMostPieces = 512;

// Whether all pieces could be copied. At most kMostPieces.
bool copy_pieces(const Piece* pieces, int count);
inline bool copy_memory(const void* from, void* to, size_t size) {
  Piece piece{from, to, size};
  return copy_pieces(&piece, 1);
}
// Copies of this thread are from another process, until the next call; 0 for this one.
void copy_from_process(int process);
// The reason why this system refuses such copies; empty if it allows them.
std::string why_no_copies();

}  // namespace stepscope
