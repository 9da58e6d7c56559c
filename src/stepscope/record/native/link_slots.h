// The slots through which loaded libraries call each other: a library's global offset table and its
// tables of functions, as the dynamic linker has filled them.
#pragma once
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stepscope {

struct LoadedObject {
  std::string path;  // empty: the program itself
  uintptr_t base, begin, end;
  const ElfW(Dyn)* dynamic;
  uintptr_t constant_begin, constant_end;  // read-only since it was linked
};

// How often libraries were loaded and unloaded so far.
struct LoadCounts {
  unsigned long long loaded = 0, unloaded = 0;
  bool operator==(const LoadCounts&) const = default;
};
LoadCounts load_counts();
std::vector<LoadedObject> loaded_objects();

// Keeps an object loaded, and waits for a thread that is just linking it.
class Held {
 public:
  explicit Held(const LoadedObject& object);
  ~Held();
  Held(const Held&) = delete;
  void* handle() const { return handle_; }
  // The object stays loaded for good.
  void keep() { handle_ = nullptr; }

 private:
  void* handle_;
};

struct LinkSlot {
  const char* name;  // of the function
  uintptr_t* address;
  bool may_be_lazy;  // linked at the first call
};
void each_slot(const LoadedObject& object, const std::function<void(const LinkSlot&)>& visit);

// False if the system refuses.
bool write_slot(const LoadedObject& object, uintptr_t* slot, uintptr_t value);

}  // namespace stepscope
